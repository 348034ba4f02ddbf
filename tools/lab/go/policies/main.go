// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

// The API server's own admission plugins for MutatingAdmissionPolicies and ValidatingAdmissionPolicies, without an API server around them:
// what they make of requests and say to them, and the CPU time that the second takes. Standard input has the policies, their bindings and
// the requests, standard output one answer for each.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/discovery"
	dynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	clients "k8s.io/client-go/kubernetes"
	kubernetes "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
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

// Denied is empty where the request passes. Failed: what went wrong in a policy that changes requests, "" for nothing; such a policy denies
// none. Made: the object that it has made of the request's, null where it has changed nothing. Seconds: of CPU time, for the policies that
// judge; Reading: for making the objects of the request's JSON, as the API server does before.
type answer struct {
	Denied  string         `json:"denied"`
	Failed  string         `json:"failed"`
	Made    runtime.Object `json:"made"`
	Seconds float64        `json:"seconds"`
	Reading float64        `json:"reading"`
}

type plugins struct {
	mutating   *mutating.Plugin
	validating *validating.Plugin
}

// A client whose schemas are empty: patches of JSON need none, and the plugin asks for one of each group.
type described struct{ clients.Interface }

func (c described) Discovery() discovery.DiscoveryInterfaces { return schemas{c.Interface.Discovery()} }

type schemas struct{ discovery.DiscoveryInterfaces }

func (s schemas) OpenAPIV3() openapi.Client { return s }

func (s schemas) Paths() (map[string]openapi.GroupVersion, error) {
	return map[string]openapi.GroupVersion{"api/v1": empty("core"), "apis/resource.k8s.io/v1": empty("resource")}, nil
}

type empty string

func (e empty) ServerRelativeURL() string { return string(e) }

func (e empty) Schema(string) ([]byte, error) {
	return []byte(`{"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": {}, "components": {"schemas": {}}}`), nil
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
	// The API server converts what a policy has made to its internal types; here there are none.
	same := func(in, out any, _ conversion.Scope) error {
		switch made := out.(type) {
		case *corev1.Pod:
			in.(*corev1.Pod).DeepCopyInto(made)
		case *resourcev1.ResourceClaim:
			in.(*resourcev1.ResourceClaim).DeepCopyInto(made)
		}
		return nil
	}
	for _, kind := range []any{(*corev1.Pod)(nil), (*resourcev1.ResourceClaim)(nil)} {
		if err := scheme.Scheme.AddConversionFunc(kind, kind, same); err != nil {
			return nil, err
		}
	}
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
	running, err := started(in.Policies, all, stop)
	if err != nil {
		return nil, err
	}
	answers := []answer{}
	for _, one := range in.Requests {
		found, err := one.ask(running)
		if err != nil {
			return nil, err
		}
		answers = append(answers, found)
	}
	return answers, nil
}

func started(policies []json.RawMessage, all authorize, stop chan struct{}) (plugins, error) {
	objects := []runtime.Object{}
	for _, name := range []string{"default", "kube-system", "gpushare-system"} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, raw := range policies {
		object, err := decoded(raw)
		if err != nil {
			return plugins{}, err
		}
		switch policy := object.(type) {
		case *admissionv1.ValidatingAdmissionPolicy:
			byDefault(policy.Spec.MatchConstraints)
		case *admissionv1.MutatingAdmissionPolicy:
			byDefault(policy.Spec.MatchConstraints)
		}
		objects = append(objects, object)
	}
	client := kubernetes.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	mutates, err := mutating.NewPlugin(nil)
	if err != nil {
		return plugins{}, err
	}
	mutates.SetEnabled(true)
	validates, err := validating.NewPlugin(nil)
	if err != nil {
		return plugins{}, err
	}
	for _, plugin := range []plugged{mutates, validates} {
		plugin.SetExternalKubeInformerFactory(factory)
		plugin.SetExternalKubeClientSet(described{client})
		plugin.SetRESTMapper(meta.NewDefaultRESTMapper(nil))
		plugin.SetDynamicClient(dynamic.NewSimpleDynamicClient(scheme.Scheme))
		plugin.SetDrainedNotification(stop)
		plugin.SetUnconditionalAuthorizer(all)
		if err := plugin.ValidateInitialization(); err != nil {
			return plugins{}, err
		}
	}
	factory.Start(stop)
	if !mutates.WaitForReady() || !validates.WaitForReady() {
		return plugins{}, fmt.Errorf("a plugin does not get ready")
	}
	return plugins{mutates, validates}, nil
}

// What both plugins want.
type plugged interface {
	admission.InitializationValidator
	initializer.WantsExternalKubeInformerFactory
	initializer.WantsExternalKubeClientSet
	initializer.WantsRESTMapper
	initializer.WantsDynamicClient
	initializer.WantsDrainedNotification
	initializer.WantsUnconditionalAuthorizer
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

func (r request) ask(running plugins) (answer, error) {
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
	validate := func() error { return running.validating.Validate(context.Background(), attributes, interfaces) }

	found := answer{}
	if operation != admission.Delete {
		if err := admit(running.mutating, attributes, interfaces); err != nil {
			found.Failed = err.Error()
		}
		if sent, err := decoded(r.Object); err != nil {
			return answer{}, err
		} else if !apiequality.Semantic.DeepEqual(sent, object) {
			found.Made = object
		}
	}
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

// As the API server's chain does: a second time where a policy has changed the object.
func admit(plugin *mutating.Plugin, attributes admission.Attributes, interfaces admission.ObjectInterfaces) error {
	err := plugin.Admit(context.Background(), attributes, interfaces)
	for tries := 0; apierrors.IsServiceUnavailable(err) && tries < 500; tries++ {
		// It has not yet read the schemas.
		time.Sleep(10 * time.Millisecond)
		err = plugin.Admit(context.Background(), attributes, interfaces)
	}
	if err != nil {
		return err
	}
	again := attributes.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	return plugin.Admit(context.Background(), attributes, interfaces)
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
