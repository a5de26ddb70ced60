# Images of compose.yaml: conclave, and Caddy and SearXNG with their settings. Each of them runs as a user without privileges on a
# read-only root. The first build downloads the Go modules and compiles for some minutes.
ARG GO_IMAGE=docker.io/library/golang:1.26-bookworm
ARG CADDY_IMAGE=docker.io/library/caddy:2
ARG SEARXNG_IMAGE=docker.io/searxng/searxng:latest

# The binary is static, DuckDB's C++ included, so that the image needs no system libraries and no shell.
FROM ${GO_IMAGE} AS build
WORKDIR /src
COPY . .
RUN CGO_ENABLED=1 go build -trimpath -buildvcs=false -tags netgo,osusergo -ldflags='-s -w -linkmode external -extldflags "-static"' \
        -o /out/usr/bin/conclave ./cmd/conclave
# Folders that Docker copies to new volumes, with their owner and mode (audit/heads is a mount point in some), and the settings: the
# modes of the checkout do not matter.
RUN install -d -m 0755 /out/etc/conclave /out/etc/ssl/certs /out/usr/share /out/home/conclave && \
    install -m 0644 deploy/config/*.yaml /out/etc/conclave/ && \
    cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ && \
    install -d -m 1777 /out/tmp && \
    install -d -m 0700 -o 65532 -g 65532 /out/tmp/agent-sandbox /out/var/lib/conclave /out/var/lib/conclave/audit \
        /out/var/lib/conclave/audit/heads /out/var/lib/audit-head /out/services && \
    for s in tools web secrets broker model memory critic reward router generator committee orchestrator scheduler gateway; do \
        install -d -m 0700 -o 65532 -g 65532 /out/services/$s /out/services/$s/audit /out/services/$s/audit/heads; \
    done && \
    install -d -m 0700 -o 65532 -g 65532 /empty
# SearXNG signs its own links with this key and refuses to start with the one that everybody knows. It is in the image only.
RUN sed "s/@secret_key@/$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')/" deploy/searxng/settings.yml > /searxng.yml

FROM scratch AS conclave
COPY --from=build /out /
ENV HOME=/home/conclave XDG_CONFIG_HOME=/etc XDG_DATA_HOME=/var/lib
USER 65532:65532
ENTRYPOINT ["/usr/bin/conclave"]

FROM ${CADDY_IMAGE} AS caddy
COPY --from=build --chown=65532:65532 /empty /data
COPY deploy/Caddyfile /etc/caddy/Caddyfile
ENV XDG_DATA_HOME=/data XDG_CONFIG_HOME=/tmp
USER 65532:65532
CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]

FROM ${SEARXNG_IMAGE} AS searxng
COPY --from=build --chown=977:977 /searxng.yml /etc/searxng/settings.yml
USER 977:977
