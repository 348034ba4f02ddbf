{{- /*
SPDX-License-Identifier: Apache-2.0
Copyright: gpushare.kubernetes contributors
Made by tools/manifests.py.
*/ -}}
{{- define "gpushare.schedulerConfig" -}}
{
  "apiVersion": "kubescheduler.config.k8s.io/v1",
  "kind": "KubeSchedulerConfiguration",
  "leaderElection": {
    "leaderElect": true,
    "resourceName": "gpushare-scheduler",
    "resourceNamespace": "{{ .Release.Namespace }}"
  },
  "percentageOfNodesToScore": {{ .Values.percentageOfNodesToScore }},
  "profiles": [
    {
      "schedulerName": "gpushare-scheduler"
    }
  ],
  "extenders": [
    {
      "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
      "filterVerb": "filter",
{{- if .Values.preemption }}
      "preemptVerb": "preempt",
{{- end }}
      "prioritizeVerb": "prioritize",
      "bindVerb": "bind",
      "weight": {{ .Values.extenderWeight }},
      "enableHTTPS": false,
      "httpTimeout": "{{ .Values.extenderHttpTimeout }}",
      "nodeCacheCapable": true,
      "ignorable": false,
      "managedResources": [
        {
          "name": "aliyun.com/gpu-mem",
          "ignoredByScheduler": false
        },
        {
          "name": "aliyun.com/gpu-count",
          "ignoredByScheduler": false
        },
        {
          "name": "aliyun.com/gpu-core.percentage",
          "ignoredByScheduler": true
        }
      ]
    }
  ]
}
{{ end -}}
