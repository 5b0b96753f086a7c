{{- /* The name of a destination's objects: (list $ "shop"). */}}
{{- define "towpath.name" -}}
{{- $root := index . 0 }}
{{- printf "%s-%s" $root.Release.Name (index . 1) | lower | replace "_" "-" | replace "." "-" | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* What selects the pods of a component: (list $ "cdc-shop"). */}}
{{- define "towpath.selector" -}}
app.kubernetes.io/name: towpath
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "towpath.labels" -}}
{{ include "towpath.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end }}

{{- define "towpath.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* The fields of every pod. */}}
{{- define "towpath.pod" -}}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The pod's volume with the stores. */}}
{{- define "towpath.claim" -}}
- metadata: {name: data}
  spec:
    accessModes: [{{ .Values.storage.accessMode }}]
    {{- with .Values.storage.className }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources: {requests: {storage: {{ .Values.storage.size }}}}
{{- end }}

{{- /* The budget and the monitor of a component: (list $ "cdc-shop" "metrics"). */}}
{{- define "towpath.watched" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $port := index . 2 }}
{{- if $root.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $component }}
  labels: {{- include "towpath.labels" (list $root $component) | nindent 4 }}
spec:
  maxUnavailable: {{ $root.Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels: {{- include "towpath.selector" (list $root $component) | nindent 6 }}
{{- end }}
{{- if $root.Values.serviceMonitor.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ $component }}
  labels: {{- merge (include "towpath.labels" (list $root $component) | fromYaml) $root.Values.serviceMonitor.labels | toYaml | nindent 4 }}
spec:
  selector:
    matchLabels: {{- include "towpath.selector" (list $root $component) | nindent 6 }}
  endpoints:
    - port: {{ $port }}
      interval: {{ $root.Values.serviceMonitor.interval }}
      {{- if eq $port "https" }}
      scheme: https
      tlsConfig:
        serverName: {{ $component }}.{{ $root.Release.Namespace }}.svc
        ca: {secret: {name: {{ $root.Values.server.tlsSecret }}, key: ca.crt}}
      {{- end }}
{{- end }}
{{- end }}
