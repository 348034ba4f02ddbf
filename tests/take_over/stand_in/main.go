// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

// Stands in for the programs of others, under their names: /etc/stand-in.json of its image says which one it is. A device plugin
// registers as theirs does and answers Allocate from what it is told, never from the ids that kubelet has chosen.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const folder = "/var/lib/kubelet/device-plugins"

// Config is the file. Extender: the program is the original's extender, and needs nothing else. GPUs: those of the node, for the
// original's device plugin.
type Config struct {
	Extender bool     `json:"extender"`
	Resource string   `json:"resource"`
	Socket   string   `json:"socket"`
	IDs      []string `json:"ids"`
	Gpus    []Gpu   `json:"gpus"`
}

type plugin struct {
	config   Config
	original *original
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	var devices []*api.Device
	for _, id := range p.config.IDs {
		devices = append(devices, &api.Device{ID: id, Health: api.Healthy})
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	if p.original != nil {
		return p.original.allocate(request)
	}
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		envs := map[string]string{"NVIDIA_VISIBLE_DEVICES": container.DevicesIDs[0]}
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{Envs: envs})
	}
	return response, nil
}

func (p *plugin) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}

func (p *plugin) GetPreferredAllocation(context.Context, *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	return &api.PreferredAllocationResponse{}, nil
}

// serve registers and returns when kubelet has a new socket, or ours is gone.
func (p *plugin) serve() error {
	path := filepath.Join(folder, p.config.Socket)
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	kubelet := filepath.Join(folder, "kubelet.sock")
	before, err := os.Stat(kubelet)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("unix:"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: p.config.Socket, ResourceName: p.config.Resource}
	if _, err := api.NewRegistrationClient(connection).Register(context.Background(), request); err != nil {
		return err
	}
	log.Printf("registered %d ids of %s", len(p.config.IDs), p.config.Resource)
	for {
		time.Sleep(500 * time.Millisecond)
		now, err := os.Stat(kubelet)
		if err != nil || !os.SameFile(before, now) {
			return fmt.Errorf("kubelet has another socket")
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the socket is gone")
		}
	}
}

func main() {
	text, err := os.ReadFile("/etc/stand-in.json")
	if err != nil {
		log.Fatal(err)
	}
	p := &plugin{}
	if err := json.Unmarshal(text, &p.config); err != nil {
		log.Fatal(err)
	}
	if p.config.Extender {
		log.Fatal(serveExtender(os.Getenv("PORT")))
	}
	if p.config.Gpus != nil {
		if p.original, err = newOriginal(os.Getenv("NODE_NAME"), p.config.Gpus); err != nil {
			log.Fatal(err)
		}
	}
	for {
		log.Print(p.serve())
		time.Sleep(time.Second)
	}
}
