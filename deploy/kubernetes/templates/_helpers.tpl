{{/* The name of the release's objects, of at most 35 characters: the longest has 28 more. */}}
{{- define "pgbeat.fullname" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- $name | trunc 35 | trimSuffix "-" -}}
{{- end -}}

{{- define "pgbeat.serviceAccountName" -}}
{{- default (.Values.serviceAccount.create | ternary (include "pgbeat.fullname" .) "default") .Values.serviceAccount.name -}}
{{- end -}}

{{/* Labels that select the pods of a component, or all pods. Takes (list . component). */}}
{{- define "pgbeat.selector" -}}
{{- $component := index . 1 -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- with $component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* Selects the pods of all workers. */}}
{{- define "pgbeat.workersSelector" -}}
matchLabels: {{- include "pgbeat.selector" (list . "") | nindent 2 }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: NotIn, values: [beat, web, migrate]}
{{- end -}}

{{/* Labels of an object. Takes (list . component). */}}
{{- define "pgbeat.labels" -}}
{{ include "pgbeat.selector" . }}
{{- with index . 0 }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{- end -}}

{{- define "pgbeat.metadata" -}}
name: {{ include "pgbeat.fullname" (index . 0) }}{{ with index . 1 }}-{{ . }}{{ end }}
labels: {{- include "pgbeat.labels" . | nindent 2 }}
{{- end -}}

{{- define "pgbeat.webUrl" -}}
{{- with .Values.web -}}
{{- if .url }}{{ .url }}{{ else if .ingress.enabled -}}
{{ empty .ingress.tlsSecret | ternary "http" "https" }}://{{ .ingress.host }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The metadata of pods. Takes (list . component). */}}
{{- define "pgbeat.podMetadata" -}}
labels: {{- include "pgbeat.selector" . | nindent 2 }}
{{- with (index . 0).Values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What the pods of all components have. */}}
{{- define "pgbeat.pod" -}}
automountServiceAccountToken: false
# Or a Service's variables look like settings: PGBEAT_WEB_PORT=tcp://…
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: {{ .Values.tmpSizeLimit }}}
  {{- with .Values.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What all containers have but their arguments, environment and probes. */}}
{{- define "pgbeat.container" -}}
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [celery, -A, {{ .Values.app | quote }}]
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "pgbeat.env" -}}
- name: PGBEAT_APP
  value: {{ .Values.app | quote }}
# The process makes this folder: one in which others may write would not do.
- name: PGBEAT_HEALTH_DIR
  value: /tmp/pgbeat
{{- with include "pgbeat.webUrl" . }}
- name: PGBEAT_WEB_URL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Probes of beat or worker. Takes the role, and the readiness probe's option. */}}
{{- define "pgbeat.probes" -}}
{{- $role := index . 0 -}}
startupProbe:
  exec: {command: [pgbeat, health, {{ $role }}, --live]}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 24
livenessProbe:
  exec: {command: [pgbeat, health, {{ $role }}, --live]}
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 2
readinessProbe:
  exec: {command: [pgbeat, health, {{ $role }}, {{ index . 1 }}]}
  periodSeconds: 30
  timeoutSeconds: 20
  failureThreshold: 2
{{- end -}}
