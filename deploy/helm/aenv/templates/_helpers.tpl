{{- define "aenv.name" -}}
{{- if contains "aenv" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-aenv" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "aenv.selector" -}}
app.kubernetes.io/name: aenv
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: platform
{{- end }}

{{- define "aenv.redisSelector" -}}
app.kubernetes.io/name: aenv
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: redis
{{- end }}

{{- define "aenv.version" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "aenv.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "aenv.instances" -}}
{{ .Values.instances.namespace | default .Release.Namespace }}
{{- end }}

{{- define "aenv.adminSecret" -}}
{{ .Values.adminToken.existingSecret | default (printf "%s-admin" (include "aenv.name" .)) }}
{{- end }}

{{/* Variables with the address of the Redis, which Kubernetes sets: clusters without DNS have no other way. */}}
{{- define "aenv.redisHost" -}}
$({{ printf "%s-redis" (include "aenv.name" .) | upper | replace "-" "_" }}_SERVICE_HOST)
{{- end }}

{{- define "aenv.hasRedis" -}}
{{- if or .Values.redis.enabled .Values.store.existingSecret }}yes{{ end }}
{{- end }}

{{- define "aenv.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not (include "aenv.hasRedis" .)) }}
{{- fail "replicas: more than one server needs a Redis: set redis.enabled or store.existingSecret" }}
{{- end }}
{{- if and (gt (int .Values.replicas) 1) (not .Values.hub.url) (not (hasPrefix "s3://" .Values.hub.blobs)) (ne .Values.persistence.accessMode "ReadWriteMany") }}
{{- fail "replicas: several servers need one place for the hub's files: set hub.blobs to s3://BUCKET/PREFIX, hub.url, or persistence.accessMode to ReadWriteMany" }}
{{- end }}
{{- if and .Values.redis.enabled .Values.store.existingSecret }}
{{- fail "redis.enabled and store.existingSecret exclude each other" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}
{{- fail "ingress.host is missing" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.serviceMonitor.tokenSecret) }}
{{- fail "metrics.serviceMonitor.tokenSecret is missing: make a token with `aenv serve token create --user prometheus --role metrics`" }}
{{- end }}
{{- end }}

{{- define "aenv.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "aenv.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
