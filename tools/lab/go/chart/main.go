// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

// Helm's own engine, without the rest of Helm: renders a chart for sets of values as `helm install` does in a cluster with given objects,
// and says what the chart's schema rejects. Standard input has the folder and the sets, standard output one answer for each.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

type input struct {
	Chart     string `json:"chart"`
	Namespace string `json:"namespace"`
	Sets      []set  `json:"sets"`
}

// Of a group with a dot in its name, the API server serves the kinds in APIs only.
type set struct {
	Values     map[string]any   `json:"values"`
	Kubernetes string           `json:"kubernetes"`
	APIs       []string         `json:"apis"`
	Objects    []map[string]any `json:"objects"`
}

// Error is empty where the chart renders.
type answer struct {
	Files map[string]string `json:"files"`
	Error string            `json:"error"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		return err
	}
	answers := []answer{}
	for _, one := range in.Sets {
		files, err := render(in, one)
		if err != nil {
			answers = append(answers, answer{Error: err.Error()})
			continue
		}
		answers = append(answers, answer{Files: files})
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

func render(in input, one set) (map[string]string, error) {
	loaded, err := loader.Load(in.Chart)
	if err != nil {
		return nil, err
	}
	version, err := chartutil.ParseKubeVersion(one.Kubernetes)
	if err != nil {
		return nil, err
	}
	capabilities := &chartutil.Capabilities{KubeVersion: *version, APIVersions: one.APIs}
	release := chartutil.ReleaseOptions{Name: "gpushare", Namespace: in.Namespace, IsInstall: true}
	values, err := chartutil.ToRenderValues(loaded, one.Values, release, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.RenderWithClientProvider(loaded, values, cluster(one))
}

type cluster set

// GetClientFor is what `lookup` asks. A kind that is not served is an error there, as with an API server.
func (c cluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	if strings.Contains(apiVersion, ".") && !slices.Contains(c.APIs, apiVersion+"/"+kind) {
		return nil, false, fmt.Errorf("the server could not find the requested resource %s/%s", apiVersion, kind)
	}
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	resource, _ := meta.UnsafeGuessKindToResource(gvk)
	objects := []runtime.Object{}
	for _, one := range c.Objects {
		if one["apiVersion"] == apiVersion && one["kind"] == kind {
			objects = append(objects, &unstructured.Unstructured{Object: one})
		}
	}
	lists := map[schema.GroupVersionResource]string{resource: kind + "List"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
	return client.Resource(resource), kind != "Node" && kind != "ResourceSlice", nil
}
