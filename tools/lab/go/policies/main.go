// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

// The API server's own admission plugin for ValidatingAdmissionPolicies, without an API server around it: what it says to requests,
// and the CPU time that it takes. Standard input has the policies, their bindings and the requests, standard output one answer for each.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	dynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	kubernetes "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
)

// A measurement is that much CPU time at least, since the kernel counts no less than some milliseconds well.
const atLeast = 0.02

type input struct {
	Policies []json.RawMessage `json:"policies"`
	Requests []request         `json:"requests"`
}

// A request to create an object, to update the one before, or to delete that one. Group: of the resource, "" for the core. Measured: how
// many times the CPU time is taken, of which the least counts.
type request struct {
	User   string   `json:"user"`
	Groups []string `json:"groups"`
	MayAll bool     `json:"may_all"`
	// Of the token: the node of the pod that it is bound to.
	Extra       map[string][]string `json:"extra"`
	Group       string              `json:"group"`
	Resource    string              `json:"resource"`
	Subresource string              `json:"subresource"`
	Object      json.RawMessage     `json:"object"`
	Before      json.RawMessage     `json:"before"`
	Measured    int                 `json:"measured"`
}

// Denied is empty where the request passes. Seconds: of CPU time, for the policies; Reading: for making the objects of the request's JSON,
// as the API server does before.
type answer struct {
	Denied  string  `json:"denied"`
	Seconds float64 `json:"seconds"`
	Reading float64 `json:"reading"`
}

// Allows everything to who may do everything, and nothing to others.
type authorize map[string]bool

func (all authorize) Authorize(_ context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	if all[of.GetUser().GetName()] {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func main() {
	answers, err := run()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(answers)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() ([]answer, error) {
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		return nil, err
	}
	all := authorize{}
	for _, one := range in.Requests {
		all[one.User] = one.MayAll
	}
	stop := make(chan struct{})
	defer close(stop)
	plugin, err := started(in.Policies, all, stop)
	if err != nil {
		return nil, err
	}
	answers := []answer{}
	for _, one := range in.Requests {
		found, err := one.ask(plugin)
		if err != nil {
			return nil, err
		}
		answers = append(answers, found)
	}
	return answers, nil
}

func started(policies []json.RawMessage, all authorize, stop chan struct{}) (*validating.Plugin, error) {
	objects := []runtime.Object{}
	for _, name := range []string{"default", "kube-system", "gpushare-system"} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, raw := range policies {
		object, err := decoded(raw)
		if err != nil {
			return nil, err
		}
		if policy, is := object.(*admissionv1.ValidatingAdmissionPolicy); is {
			byDefault(policy.Spec.MatchConstraints)
		}
		objects = append(objects, object)
	}
	client := kubernetes.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	plugin, err := validating.NewPlugin(nil)
	if err != nil {
		return nil, err
	}
	plugin.SetExternalKubeInformerFactory(factory)
	plugin.SetExternalKubeClientSet(client)
	plugin.SetRESTMapper(meta.NewDefaultRESTMapper(nil))
	plugin.SetDynamicClient(dynamic.NewSimpleDynamicClient(scheme.Scheme))
	plugin.SetDrainedNotification(stop)
	plugin.SetUnconditionalAuthorizer(all)
	if err := plugin.ValidateInitialization(); err != nil {
		return nil, err
	}
	factory.Start(stop)
	if !plugin.WaitForReady() {
		return nil, fmt.Errorf("the plugin does not get ready")
	}
	return plugin, nil
}

// What the API server writes into a policy when it stores it.
func byDefault(constraints *admissionv1.MatchResources) {
	equivalent := admissionv1.Equivalent
	constraints.MatchPolicy = &equivalent
	constraints.NamespaceSelector = &metav1.LabelSelector{}
	constraints.ObjectSelector = &metav1.LabelSelector{}
}

func decoded(raw json.RawMessage) (runtime.Object, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	return object, err
}

func (r request) ask(plugin *validating.Plugin) (answer, error) {
	object, err := decoded(r.Object)
	if err != nil {
		return answer{}, err
	}
	before, err := decoded(r.Before)
	if err != nil {
		return answer{}, err
	}
	about, operation := object, admission.Create
	if object == nil {
		about, operation = before, admission.Delete
	} else if before != nil {
		operation = admission.Update
	}
	named, err := meta.Accessor(about)
	if err != nil {
		return answer{}, err
	}
	attributes := admission.NewAttributesRecord(object, before, about.GetObjectKind().GroupVersionKind(), named.GetNamespace(), named.GetName(),
		schema.GroupVersionResource{Group: r.Group, Version: "v1", Resource: r.Resource}, r.Subresource, operation, nil, false,
		&user.DefaultInfo{Name: r.User, Groups: r.Groups, Extra: r.Extra})
	interfaces := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	validate := func() error { return plugin.Validate(context.Background(), attributes, interfaces) }

	found := answer{}
	if err := validate(); err != nil {
		found.Denied = err.Error()
	}
	read := func() error {
		if _, err := decoded(r.Object); err != nil {
			return err
		}
		_, err := decoded(r.Before)
		return err
	}
	found.Seconds, found.Reading = least(r.Measured, validate), least(r.Measured, read)
	return found, nil
}

// The least CPU time of a call, of so many tries; 0 without any.
func least(tries int, call func() error) float64 {
	found := 0.0
	for range tries {
		// What former requests have left is not counted.
		debug.FreeOSMemory()
		calls, begin := 0, cpu()
		for calls == 0 || cpu()-begin < atLeast {
			_ = call()
			calls++
		}
		if seconds := (cpu() - begin) / float64(calls); found == 0 || seconds < found {
			found = seconds
		}
	}
	return found
}

// The CPU seconds of this process so far.
func cpu() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
