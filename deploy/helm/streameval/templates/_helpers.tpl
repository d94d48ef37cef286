{{- define "streameval.labels" -}}
app.kubernetes.io/name: streameval
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "streameval.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The configuration, with what only the chart knows. */ -}}
{{- define "streameval.config" -}}
{{- $files := dict -}}
{{- if .Values.files.claim -}}
{{- if .Values.files.outcomes }}{{ $files = set $files "outcomes" "/data/outcomes" }}{{ end -}}
{{- if .Values.files.snapshots }}{{ $files = set $files "snapshots" "/data/snapshots" }}{{ end -}}
{{- end -}}
{{- if .Values.checks }}{{ $files = set $files "checks" "/etc/streameval/checks.yaml" }}{{ end -}}
{{ toYaml (merge (deepCopy .Values.config) $files) }}
{{- end }}

{{- /* A pod of a command of streameval: a dict of `root` and `command`. */ -}}
{{- define "streameval.pod" -}}
{{- $values := .root.Values -}}
metadata:
  labels:
    {{- include "streameval.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .command }}
    {{- with $values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    # Another configuration starts the pods anew, one after the other.
    checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
    {{- with $values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.topologySpreadConstraints }}
  topologySpreadConstraints: {{ toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .command }}
      image: {{ include "streameval.image" .root | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: [{{ .command }}, --config, /etc/streameval/streameval.yaml]
      env:
        - {name: STREAMEVAL_LISTEN, value: "0.0.0.0:8080"}
        {{- if eq .command "worker" }}
        # A pod that comes back under its name has its partitions again without a rebalance.
        - name: STREAMEVAL_KAFKA_INSTANCE_ID
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- end }}
        {{- range $key, $from := $values.secrets }}
        - name: STREAMEVAL_{{ upper $key }}_FILE
          value: /etc/streameval/secrets/{{ $key }}/value
        {{- end }}
        {{- with $values.env }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - {name: http, containerPort: 8080}
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
      resources: {{ toYaml $values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: config, mountPath: /etc/streameval, readOnly: true}
        - {name: scratch, mountPath: /tmp}
        {{- range $key, $from := $values.secrets }}
        - {name: secret-{{ $key | replace "_" "-" }}, mountPath: /etc/streameval/secrets/{{ $key }}, readOnly: true}
        {{- end }}
        {{- if $values.certificates }}
        - {name: certificates, mountPath: /etc/streameval/certificates, readOnly: true}
        {{- end }}
        {{- if $values.files.claim }}
        - {name: data, mountPath: /data}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ .root.Release.Name }}}
    - name: scratch
      emptyDir: {}
    {{- range $key, $from := $values.secrets }}
    - name: secret-{{ $key | replace "_" "-" }}
      secret:
        secretName: {{ $from.secret }}
        items: [{key: {{ $from.key }}, path: value}]
    {{- end }}
    {{- if $values.certificates }}
    - name: certificates
      projected:
        sources:
          {{- range $path, $from := $values.certificates }}
          - secret: {name: {{ $from.secret }}, items: [{key: {{ $from.key }}, path: {{ $path }}}]}
          {{- end }}
    {{- end }}
    {{- if $values.files.claim }}
    - name: data
      persistentVolumeClaim: {claimName: {{ $values.files.claim }}}
    {{- end }}
{{- end }}
