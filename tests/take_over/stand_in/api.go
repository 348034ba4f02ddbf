// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	memory = "aliyun.com/gpu-mem"
	count  = "aliyun.com/gpu-count"

	index      = "ALIYUN_COM_GPU_MEM_IDX"
	device     = "ALIYUN_COM_GPU_MEM_DEV"
	podTotal   = "ALIYUN_COM_GPU_MEM_POD"
	assigned   = "ALIYUN_COM_GPU_MEM_ASSIGNED"
	assumeTime = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"

	account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	merge   = "application/merge-patch+json"
)

// Object is what the original needs of nodes, pods and ConfigMaps.
type Object struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		DeletionTimestamp string            `json:"deletionTimestamp"`
		Annotations       map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		NodeName   string `json:"nodeName"`
		Containers []struct {
			Resources struct {
				Limits map[string]string `json:"limits"`
			} `json:"resources"`
		} `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase    string            `json:"phase"`
		Capacity map[string]string `json:"capacity"`
	} `json:"status"`
	Data map[string]string `json:"data"`
}

// units is what all containers of a pod ask for together.
func (o *Object) units() int {
	total := 0
	for _, container := range o.Spec.Containers {
		units, _ := strconv.Atoi(container.Resources.Limits[memory])
		total += units
	}
	return total
}

// capacity is a number in a node's status, 0 for none.
func (o *Object) capacity(resource string) int {
	number, _ := strconv.Atoi(o.Status.Capacity[resource])
	return number
}

// assumed is when the extender has chosen a GPU for a pod, 0 for never.
func (o *Object) assumed() int64 {
	nanoseconds, _ := strconv.ParseInt(o.Metadata.Annotations[assumeTime], 10, 64)
	return nanoseconds
}

func (o *Object) path() string {
	return "/api/v1/namespaces/" + o.Metadata.Namespace + "/pods/" + o.Metadata.Name
}

// Cluster is the API server, asked as the pod's own account.
type Cluster struct {
	client  *http.Client
	address string
}

func newCluster() (*Cluster, error) {
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	address := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return &Cluster{&http.Client{Transport: transport, Timeout: 10 * time.Second}, "https://" + address}, nil
}

func (c *Cluster) do(method, path, kind string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	request, err := http.NewRequest(method, c.address+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Content-Type", kind)
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, said)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(said, answer)
}

func (c *Cluster) get(path string) (*Object, error) {
	found := &Object{}
	return found, c.do(http.MethodGet, path, "application/json", nil, found)
}

// pods are those that the field selector means.
func (c *Cluster) pods(fields string) ([]Object, error) {
	var found struct {
		Items []Object `json:"items"`
	}
	err := c.do(http.MethodGet, "/api/v1/pods?fieldSelector="+url.QueryEscape(fields), "application/json", nil, &found)
	return found.Items, err
}

func (c *Cluster) annotate(pod *Object, annotations map[string]string) error {
	body := map[string]any{"metadata": map[string]any{"annotations": annotations}}
	return c.do(http.MethodPatch, pod.path(), merge, body, nil)
}
