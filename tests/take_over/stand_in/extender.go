// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// extender is the original's: the fullest GPU on which a pod fits, of GPUs that all have an equal part of the node's units. It asks
// the API server each time, where the original keeps a copy.
type extender struct {
	mutex   sync.Mutex
	cluster *Cluster
}

type filterArguments struct {
	Pod       Object
	NodeNames []string
}

type filterResult struct {
	NodeNames   []string
	FailedNodes map[string]string
	Error       string
}

type bindArguments struct {
	PodName, PodNamespace, PodUID, Node string
}

func serveExtender(port string) error {
	cluster, err := newCluster()
	if err != nil {
		return err
	}
	e := &extender{cluster: cluster}
	const prefix = "/gpushare-scheduler/"
	http.HandleFunc("POST "+prefix+"filter", e.filter)
	http.HandleFunc("POST "+prefix+"bind", e.bind)
	http.HandleFunc("GET /version", func(writer http.ResponseWriter, _ *http.Request) { fmt.Fprint(writer, "0.1.0") })
	return http.ListenAndServe(":"+port, nil)
}

func (e *extender) filter(writer http.ResponseWriter, request *http.Request) {
	var asked filterArguments
	result := filterResult{FailedNodes: map[string]string{}}
	if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
		result.Error = err.Error()
		answer(writer, http.StatusOK, result)
		return
	}
	for _, node := range asked.NodeNames {
		free, _, err := e.free(node)
		switch {
		case err != nil:
			result.FailedNodes[node] = "failed get node with name " + node
		case len(free) == 0:
			result.FailedNodes[node] = "The node " + node + " is not for GPU share, need skip"
		case bestFit(free, asked.Pod.units()) < 0:
			result.FailedNodes[node] = "Insufficient GPU Memory in one device"
		default:
			result.NodeNames = append(result.NodeNames, node)
		}
	}
	answer(writer, http.StatusOK, result)
}

func (e *extender) bind(writer http.ResponseWriter, request *http.Request) {
	var asked bindArguments
	err := json.NewDecoder(request.Body).Decode(&asked)
	if err == nil {
		err = e.bindPod(asked)
	}
	if err != nil {
		log.Print(err)
		answer(writer, http.StatusInternalServerError, map[string]string{"Error": err.Error()})
		return
	}
	answer(writer, http.StatusOK, map[string]string{"Error": ""})
}

func (e *extender) bindPod(asked bindArguments) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	pod, err := e.cluster.get("/api/v1/namespaces/" + asked.PodNamespace + "/pods/" + asked.PodName)
	if err != nil {
		return err
	}
	if pod.Metadata.UID != asked.PodUID {
		return fmt.Errorf("the pod %s has the UID %s, expected %s", asked.PodName, pod.Metadata.UID, asked.PodUID)
	}
	free, size, err := e.free(asked.Node)
	if err != nil {
		return err
	}
	gpu := bestFit(free, pod.units())
	if gpu < 0 {
		return fmt.Errorf("the node %s has no GPU with %d units", asked.Node, pod.units())
	}
	err = e.cluster.annotate(pod, map[string]string{
		index:      strconv.Itoa(gpu),
		device:     strconv.Itoa(size),
		podTotal:   strconv.Itoa(pod.units()),
		assigned:   "false",
		assumeTime: strconv.FormatInt(time.Now().UnixNano(), 10),
	})
	if err != nil {
		return err
	}
	binding := map[string]any{
		"apiVersion": "v1",
		"kind":       "Binding",
		"metadata":   map[string]string{"name": asked.PodName, "uid": asked.PodUID},
		"target":     map[string]string{"kind": "Node", "name": asked.Node},
	}
	return e.cluster.do(http.MethodPost, pod.path()+"/binding", "application/json", binding, nil)
}

// free is the units that no pod holds, by GPU, and the size of a GPU; none for a node without GPUs.
func (e *extender) free(name string) ([]int, int, error) {
	node, err := e.cluster.get("/api/v1/nodes/" + name)
	if err != nil {
		return nil, 0, err
	}
	gpus := node.capacity(count)
	if gpus == 0 {
		return nil, 0, nil
	}
	size := node.capacity(memory) / gpus
	free := make([]int, gpus)
	for gpu := range free {
		free[gpu] = size
	}
	pods, err := e.cluster.pods("spec.nodeName=" + name + ",status.phase!=Succeeded,status.phase!=Failed")
	if err != nil {
		return nil, 0, err
	}
	for i := range pods {
		pod := &pods[i]
		gpu, err := strconv.Atoi(pod.Metadata.Annotations[index])
		if err == nil && gpu >= 0 && gpu < gpus && pod.Metadata.DeletionTimestamp == "" {
			free[gpu] -= pod.units()
		}
	}
	// GPUs that are not healthy, if somebody has written them down.
	if found, err := e.cluster.get("/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-" + name); err == nil {
		for _, word := range strings.Split(found.Data["gpus"], ",") {
			if gpu, err := strconv.Atoi(strings.TrimSpace(word)); err == nil && gpu >= 0 && gpu < gpus {
				free[gpu] = 0
			}
		}
	}
	return free, size, nil
}

// bestFit is the index of the fullest GPU with so many units free, the first of equals, -1 for none.
func bestFit(free []int, units int) int {
	best := -1
	for gpu, here := range free {
		if units > 0 && here >= units && (best < 0 || here < free[best]) {
			best = gpu
		}
	}
	return best
}

func answer(writer http.ResponseWriter, status int, value any) {
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(status)
	_ = json.NewEncoder(writer).Encode(value)
}
