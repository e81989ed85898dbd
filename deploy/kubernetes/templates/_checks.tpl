{{/* Refuses values that can't work, before anything is installed. */}}
{{- define "pgbeat.check" -}}
{{- with .Values.image }}
{{- if not (and .repository .tag) }}{{ fail "image.repository and image.tag are required: your app's image, with pgbeat in it" }}{{ end }}
{{- end }}
{{- if not .Values.secret.name }}{{ fail "secret.name is required: an existing Secret with PGBEAT_URL" }}{{ end }}
{{- with .Values.web }}
{{- if and .ingress.enabled (not .enabled) }}{{ fail "web.ingress.enabled needs web.enabled" }}{{ end }}
{{- if and .ingress.enabled (not .ingress.host) }}{{ fail "web.ingress.host is required with an ingress" }}{{ end }}
{{- end }}
{{- with .Values.monitoring.serviceMonitor }}
{{- if and .enabled (not $.Values.web.enabled) }}{{ fail "monitoring.serviceMonitor needs web.enabled: the web side serves the metrics" }}{{ end }}
{{- if and .enabled (not .tokenSecret) }}{{ fail "monitoring.serviceMonitor.tokenSecret is required: make a token with `pgbeat tokens create --for prometheus --scope metrics --expires never`" }}{{ end }}
{{- end }}
{{- with .Values.networkPolicy }}
{{- if and .enabled (not .postgres) }}{{ fail "networkPolicy.postgres is required with a policy: without it no pod reaches the database" }}{{ end }}
{{- end }}
{{- range .Values.env }}
{{- if and .value (or (regexMatch "://[^/@]*:[^/@]+@" .value) (regexMatch "(PASSWORD|SECRET|TOKEN)$" .name)) }}{{ fail (printf "env: %s belongs in a Secret; use secret.name, or valueFrom" .name) }}{{ end }}
{{- end }}
{{- include "pgbeat.checkWorkers" . }}
{{- end -}}

{{- define "pgbeat.checkWorkers" -}}
{{- $names := dict }}
{{- $consumers := dict }}
{{- range include "pgbeat.workers" . | fromJsonArray }}
{{- if hasKey $names .name }}{{ fail (printf "workers: two have the name %q" .name) }}{{ end }}
{{- $_ := set $names .name true }}
{{- if and (eq .pool "solo") (ne (int .concurrency) 1) }}{{ fail (printf "worker %q: the pool solo runs one task at a time; set concurrency to 1" .name) }}{{ end }}
{{- if .softShutdownSeconds }}
{{- if ne .pool "prefork" }}{{ fail (printf "worker %q: softShutdownSeconds needs the pool prefork, not %s" .name .pool) }}{{ end }}
{{- $least := add .softShutdownSeconds 30 }}
{{- if lt (int .terminationGracePeriodSeconds) (int $least) }}{{ fail (printf "worker %q: terminationGracePeriodSeconds must be at least softShutdownSeconds + 30 (%d)" .name $least) }}{{ end }}
{{- end }}
{{- if and .autoscaling.enabled (lt (int .autoscaling.maxReplicas) (int .autoscaling.minReplicas)) }}{{ fail (printf "worker %q: autoscaling.maxReplicas is below minReplicas" .name) }}{{ end }}
{{- $worker := . }}
{{- range .queues }}
{{- $other := get $consumers . }}
{{- if and $other (or $worker.autoscaling.enabled $other.autoscaling.enabled) }}{{ fail (printf "queue %q has two Deployments of workers, %q and %q: autoscaling would make each large enough for all of its load" . $other.name $worker.name) }}{{ end }}
{{- $_ := set $consumers . $worker }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The workers with their defaults, as JSON. */}}
{{- define "pgbeat.workers" -}}
{{- $workers := list }}
{{- range .Values.workers }}
{{- $workers = append $workers (mergeOverwrite (deepCopy $.Values.workerDefaults) .) }}
{{- end }}
{{- toJson $workers }}
{{- end -}}
