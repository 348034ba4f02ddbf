{{- /*
SPDX-License-Identifier: Apache-2.0
Copyright: gpushare.kubernetes contributors
Made by tools/manifests.py.
*/ -}}
{{- define "gpushare.devicePluginSettings" -}}
apiVersion: gpushare.kubernetes/v1
kind: DevicePluginConfig
{{- if has .Values.deviceStrategy (list "auto" "cdi") }}
cdiDir: {{ .Values.cdiDir | toJson }}
{{- end }}
cgroupRoot: "/host/sys/fs/cgroup"
devRoot: "/host/dev"
deviceStrategy: {{ eq .Values.backend "dra" | ternary "cdi" .Values.deviceStrategy | toJson }}
{{- if has .Values.deviceStrategy (list "auto" "cdi") }}
driverRoot: {{ .Values.driverRoot | toJson }}
{{- end }}
healthChecks: {{ .Values.healthChecks | toJson }}
healthListen: "0.0.0.0:9443"
{{- if has .Values.deviceStrategy (list "auto" "cdi") }}
hostRoot: "/host"
{{- end }}
inContainer: true
isolation: {{ eq .Values.isolation "auto" | ternary "watch" .Values.isolation | toJson }}
kubeletRoot: {{ .Values.kubeletRoot | toJson }}
memoryUnit: {{ .Values.memoryUnit | toJson }}
{{- if .Values.metrics.enabled }}
metricsListen: "0.0.0.0:9440"
{{- end }}
{{- if .Values.metrics.enabled }}
metricsTokenFile: "/etc/gpushare/metrics/token"
{{- end }}
overuse: {{ .Values.overuse | toJson }}
overuseGrace: {{ .Values.overuseGrace | toJson }}
publishUse: {{ .Values.publishUse | toJson }}
{{- if .Values.runtimeClass }}
runtimeClass: {{ .Values.runtimeClass | toJson }}
{{- end }}
stateDir: "/var/lib/gpushare-device-plugin"
unhealthy: {{ .Values.unhealthy | toJson }}
{{- if eq .Values.backend "dra" }}
backend: "dra"
{{- end }}
{{ end -}}
