{{- define "streamd.name" -}}
{{- default (ternary .Release.Name (printf "%s-streamd" .Release.Name) (contains "streamd" .Release.Name)) .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "streamd.selector" -}}
app.kubernetes.io/name: streamd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "streamd.labels" -}}
{{ include "streamd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "streamd.secret" -}}
{{- default (include "streamd.name" .) .Values.auth.existingSecret -}}
{{- end -}}

{{- define "streamd.config" -}}
server_name: $POD_NAME       # the node's identity: a StatefulSet gives the same name for ever
listen: 0.0.0.0:4222
http: 0.0.0.0:8222           # /healthz /varz /jsz /raftz /metrics; the Services do not publish it

jetstream {
  store_dir: /data           # the volume of this pod
  sync_interval: always      # fsync on a majority before every ack
}

authorization {
  user: $CLIENT_USER
  password: $CLIENT_PASSWORD # a bcrypt hash, from the Secret
}
{{- if .Values.tls.existingSecret }}

tls {
  cert_file: /etc/streamd-tls/tls.crt
  key_file: /etc/streamd-tls/tls.key
}
{{- end }}
{{- if gt (int .Values.replicas) 1 }}

cluster {
  name: {{ include "streamd.name" . }}
  listen: 0.0.0.0:6222
  no_advertise: true         # pods' addresses mean nothing to clients outside the cluster
  authorization {
    user: route
    password: $CLUSTER_PASSWORD
    timeout: 2
  }
  routes = [
    {{- range until (int .Values.replicas) }}
    nats://{{ include "streamd.name" $ }}-{{ . }}.{{ include "streamd.name" $ }}-nodes:6222
    {{- end }}
  ]
}
{{- end }}
{{- with .Values.extraConfig }}

{{ . | trim }}
{{- end }}
{{ end -}}
