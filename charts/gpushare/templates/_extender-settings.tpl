{{- /*
SPDX-License-Identifier: Apache-2.0
Copyright: gpushare.kubernetes contributors
Made by tools/manifests.py.
*/ -}}
{{- define "gpushare.extenderSettings" -}}
apiVersion: gpushare.kubernetes/v1
kind: ExtenderConfig
{{- if eq .Values.overuse "evict" }}
evict: true
{{- end }}
evictionPause: {{ .Values.evictionPause | toJson }}
gpuPlacement: {{ .Values.gpuPlacement | toJson }}
healthListen: "0.0.0.0:9443"
lease: "{{ .Release.Namespace }}/gpushare-scheduler"
listen: "127.0.0.1:32766"
{{- if .Values.metrics.enabled }}
metricsListen: "0.0.0.0:9441"
{{- end }}
{{- if .Values.metrics.enabled }}
metricsTokenFile: "/etc/gpushare/metrics/token"
{{- end }}
mostNodes: {{ .Values.mostNodes | toJson }}
placement: {{ .Values.placement | toJson }}
preempt: {{ .Values.preemption | toJson }}
{{ end -}}
