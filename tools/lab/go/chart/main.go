// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

// Helm's own engine, without the rest of Helm: renders a chart for sets of values as `helm template` does, and says what the chart's
// schema rejects. Standard input has the folder and the sets, standard output one answer for each.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

type input struct {
	Chart     string `json:"chart"`
	Namespace string `json:"namespace"`
	Sets      []set  `json:"sets"`
}

type set struct {
	Values     map[string]any `json:"values"`
	Kubernetes string         `json:"kubernetes"`
	APIs       []string       `json:"apis"`
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
	return engine.Render(loaded, values)
}
