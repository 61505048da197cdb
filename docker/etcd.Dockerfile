# etcd that runs as somebody other than root, on a volume that belongs to it. ETCD_IMAGE holds
# /usr/local/bin/etcd and etcdctl, version 3.4 or newer.
ARG ETCD_IMAGE=gcr.io/etcd-development/etcd:v3.5.21
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${ETCD_IMAGE} AS etcd

FROM ${PYTHON_IMAGE}
RUN install --directory --owner=10002 --group=10002 --mode=700 /var/lib/etcd
COPY --from=etcd /usr/local/bin/etcd /usr/local/bin/etcdctl /usr/local/bin/
ENV ETCDCTL_API=3 ETCD_DATA_DIR=/var/lib/etcd
USER 10002:10002
ENTRYPOINT ["etcd"]
