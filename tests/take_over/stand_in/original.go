// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

package main

import (
	"fmt"
	"log"
	"net/http"
	"strconv"
	"sync"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// GPU of a node. The original takes the memory of the first one for that of all.
type Gpu struct {
	UUID  string `json:"uuid"`
	Minor int    `json:"minor"`
	Units int    `json:"units"`
}

// original is its device plugin: it takes the oldest assumed pod that asks for as many units as there are ids for the one that asks.
type original struct {
	mutex   sync.Mutex
	cluster *Cluster
	node    string
	gpus   []Gpu
}

func newOriginal(node string, gpus []Gpu) (*original, error) {
	cluster, err := newCluster()
	if err != nil {
		return nil, err
	}
	o := &original{cluster: cluster, node: node, gpus: gpus}
	return o, o.reportCount()
}

// reportCount writes the number of GPUs into the node's status, if it is another one. It does so at the start only.
func (o *original) reportCount() error {
	path := "/api/v1/nodes/" + o.node
	node, err := o.cluster.get(path)
	if err != nil || node.capacity(count) == len(o.gpus) {
		return err
	}
	number := map[string]string{count: strconv.Itoa(len(o.gpus))}
	body := map[string]any{"status": map[string]any{"capacity": number, "allocatable": number}}
	return o.cluster.do(http.MethodPatch, path+"/status", merge, body, nil)
}

func (o *original) allocate(request *api.AllocateRequest) (*api.AllocateResponse, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	asked := 0
	for _, container := range request.ContainerRequests {
		asked += len(container.DevicesIDs)
	}
	visible, gpu := o.choose(asked)
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		envs := map[string]string{
			"NVIDIA_VISIBLE_DEVICES":       visible,
			index:                          gpu,
			podTotal:                       strconv.Itoa(asked),
			"ALIYUN_COM_GPU_MEM_CONTAINER": strconv.Itoa(len(container.DevicesIDs)),
			device:                         strconv.Itoa(o.gpus[0].Units),
		}
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{Envs: envs})
	}
	return response, nil
}

// choose returns what becomes NVIDIA_VISIBLE_DEVICES, and the GPU's index. An error is a text in that variable, as with the original.
func (o *original) choose(asked int) (string, string) {
	failure := fmt.Sprintf("no-gpu-has-%dGiB-to-run", asked)
	pod, err := o.oldest(asked)
	if err != nil {
		log.Print(err)
		return failure, "-1"
	}
	if pod == nil {
		if len(o.gpus) == 1 {
			return o.gpus[0].UUID, strconv.Itoa(o.gpus[0].Minor)
		}
		return failure, "-1"
	}
	gpu := pod.Metadata.Annotations[index]
	if !o.has(gpu) {
		return failure, "-1"
	}
	if err := o.cluster.annotate(pod, map[string]string{assigned: "true", assumeTime: strconv.FormatInt(time.Now().UnixNano(), 10)}); err != nil {
		log.Print(err)
		return failure, "-1"
	}
	return gpu, gpu
}

func (o *original) oldest(asked int) (*Object, error) {
	pods, err := o.cluster.pods("spec.nodeName=" + o.node + ",status.phase=Pending")
	if err != nil {
		return nil, err
	}
	var found *Object
	for i := range pods {
		pod := &pods[i]
		waits := pod.assumed() != 0 && pod.Metadata.Annotations[assigned] == "false" && pod.units() == asked
		if waits && (found == nil || pod.assumed() < found.assumed()) {
			found = pod
		}
	}
	return found, nil
}

func (o *original) has(minor string) bool {
	for _, gpu := range o.gpus {
		if strconv.Itoa(gpu.Minor) == minor {
			return true
		}
	}
	return false
}
