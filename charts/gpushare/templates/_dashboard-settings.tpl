{{- /*
SPDX-License-Identifier: Apache-2.0
Copyright: gpushare.kubernetes contributors
Made by tools/manifests.py.
*/ -}}
{{- define "gpushare.dashboardSettings" -}}
apiVersion: gpushare.kubernetes/v1
kind: DashboardConfig
hostNames: {{ list "localhost" (printf "gpushare-dashboard.%s.svc" .Release.Namespace) (printf "gpushare-dashboard.%s" .Release.Namespace) .Values.dashboard.hostName | compact | toJson }}
listen: "0.0.0.0:9442"
ownTokens: true
{{- if .Values.prometheus }}
prometheus: "{{ .Values.prometheus }}"
{{- end }}
tlsCert: "/run/gpushare-tls/dashboard.crt"
tlsKey: "/run/gpushare-tls/dashboard.key"
{{ end -}}
