# JobManager, TaskManager and the `holdover` command in one image; compose files choose by `command`.
#
#   docker build --tag holdover .
#
# PYTHON_IMAGE is any image with python 3.11 or newer and its venv module; one of Debian or of its kin.
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
RUN python -m venv /opt/build && python -m venv --without-pip /opt/holdover
# What is installed changes less often than the source: it has layers of its own.
COPY pyproject.toml requirements.lock ./
RUN python -c "import tomllib; \
    told = tomllib.load(open('pyproject.toml', 'rb')); \
    project = told['project']; \
    run = project['dependencies'] + project['optional-dependencies']['tpch']; \
    open('run.txt', 'w').write('\n'.join(run)); \
    open('build.txt', 'w').write('\n'.join(told['build-system']['requires']))" \
    && /opt/build/bin/pip install --no-cache-dir --constraint requirements.lock --requirement build.txt \
    && /opt/build/bin/pip --python /opt/holdover/bin/python install --no-cache-dir \
        --constraint requirements.lock --requirement run.txt \
    && cd /opt/holdover/lib/python3.*/site-packages \
    && rm -rf pyarrow/include pyarrow/src pyarrow/tests \
    && find . -path '*/numpy/*/tests' -prune -exec rm -rf {} +
COPY README.md LICENSE hatch_build.py ./
COPY proto proto
COPY holdover holdover
COPY jobmanager jobmanager
COPY taskmanager taskmanager
COPY shuffle shuffle
COPY simulator simulator
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/holdover/bin/python install --no-cache-dir --no-deps /wheels/*.whl

FROM ${PYTHON_IMAGE}
# New volumes get the owner of the directories that they are mounted on.
RUN groupadd --gid 10001 holdover \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/holdover --no-create-home \
        --shell /usr/sbin/nologin holdover \
    && install --directory --owner=10001 --group=10001 \
        /var/lib/holdover /var/lib/holdover/storage /var/lib/holdover/work /data
COPY --from=build /opt/holdover /opt/holdover
COPY examples /opt/holdover/examples
COPY docker/taskmanager.sh /usr/local/bin/holdover-taskmanager
# The working directory of the process, and where TPC-H tables are kept: a volume that all share.
ENV PATH=/opt/holdover/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOLDOVER_HOME=/var/lib/holdover \
    HOLDOVER_CACHE=/data \
    HOLDOVER_IO_TMP_DIRS=/var/lib/holdover/work
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["holdover"]
CMD ["--help"]
