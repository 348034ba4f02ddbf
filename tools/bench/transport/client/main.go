// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

// Calls an extender as kube-scheduler does: filter and prioritize of one pod after the other, binds beside them.
//
// The transport has the settings that kube-scheduler's has (makeTransport in pkg/scheduler/extender.go with
// SetTransportDefaults of apimachinery): two idle connections per host, which is Go's default, HTTP/2 offered by ALPN,
// the client certificate by GetClientCertificate, no cache of TLS sessions. It prints what happened as JSON.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type counts struct {
	dials, handshakes, errors atomic.Int64
	protocol                  atomic.Value
}

func main() {
	url := flag.String("url", "", "the extender's URL prefix")
	folder := flag.String("pki", "", "folder with ca.crt, tls.crt, tls.key; empty for plain http")
	body := flag.String("body", "", "file with an ExtenderArgs; %UID% in it becomes the pod's")
	pods := flag.Int("pods", 1000, "how many pods")
	think := flag.Duration("think", 0, "the scheduler's own time for each pod")
	flag.Parse()

	var seen counts
	client := &http.Client{Transport: transport(*folder, &seen), Timeout: 5 * time.Second}
	template, err := os.ReadFile(*body)
	check(err)
	call := func(verb string, text []byte) float64 {
		start := time.Now()
		if err := send(client, &seen, *url+"/"+verb, text); err != nil {
			seen.errors.Add(1)
			fmt.Fprintln(os.Stderr, err)
		}
		return float64(time.Since(start).Microseconds()) / 1000
	}
	var filters, prioritizes []float64
	binds := make([]float64, *pods)
	var binding sync.WaitGroup
	start := time.Now()
	for n := 0; n < *pods; n++ {
		uid := fmt.Sprintf("00000000-0000-0000-0000-%012d", n)
		text := bytes.ReplaceAll(template, []byte("%UID%"), []byte(uid))
		filters = append(filters, call("filter", text))
		prioritizes = append(prioritizes, call("prioritize", text))
		bind := []byte(fmt.Sprintf(`{"PodName":"p","PodNamespace":"default","PodUID":%q,"Node":"gpu-node-0001"}`, uid))
		binding.Add(1)
		go func(n int) {
			defer binding.Done()
			binds[n] = call("bind", bind)
		}(n)
		time.Sleep(*think)
	}
	binding.Wait()
	seconds := time.Since(start).Seconds()
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"pods": *pods, "seconds": seconds, "errors": seen.errors.Load(), "protocol": seen.protocol.Load(),
		"connections": seen.dials.Load(), "handshakes": seen.handshakes.Load(),
		"filter_ms": middle(filters), "prioritize_ms": middle(prioritizes), "bind_ms": middle(binds),
	}))
}

// transport has kube-scheduler's settings, and counts.
func transport(folder string, seen *counts) *http.Transport {
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	made := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			seen.dials.Add(1)
			return dialer.DialContext(ctx, network, address)
		},
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		// What http2.ConfigureTransports does in apimachinery.
		ForceAttemptHTTP2: true,
	}
	if folder == "" {
		return made
	}
	ca, err := os.ReadFile(folder + "/ca.crt")
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	certificate, err := tls.LoadX509KeyPair(folder+"/tls.crt", folder+"/tls.key")
	check(err)
	made.TLSClientConfig = &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &certificate, nil
		},
		VerifyConnection: func(tls.ConnectionState) error {
			seen.handshakes.Add(1)
			return nil
		},
	}
	return made
}

// send is HTTPExtender.send: it decodes one JSON value, and reads no further.
func send(client *http.Client, seen *counts, url string, text []byte) error {
	request, err := http.NewRequest("POST", url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	seen.protocol.Store(response.Proto)
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: code %v", url, response.StatusCode)
	}
	if strings.HasSuffix(url, "/prioritize") {
		var scores []struct{ Host string }
		err = json.NewDecoder(response.Body).Decode(&scores)
		if err == nil && len(scores) == 0 {
			err = fmt.Errorf("%s: no scores", url)
		}
		return err
	}
	var result struct {
		NodeNames *[]string
		Error     string
	}
	if err := json.NewDecoder(response.Body).Decode(&result); err != nil {
		return err
	}
	if result.Error != "" || (strings.HasSuffix(url, "/filter") && (result.NodeNames == nil || len(*result.NodeNames) == 0)) {
		return fmt.Errorf("%s: %+v", url, result)
	}
	return nil
}

// middle is the median, and the 99th percentile.
func middle(times []float64) map[string]float64 {
	sort.Float64s(times)
	return map[string]float64{"p50": times[len(times)/2], "p99": times[len(times)*99/100]}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
