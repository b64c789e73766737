# Two stages: the first has pip and compiles, the second has Python and what was installed.
# Another image of Python: --build-arg BASE=registry.example.com/python:3.12-slim
ARG BASE=python:3.12-slim
FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY streamd streamd
RUN python -m venv --without-pip /opt/streamd
RUN python -m pip --python /opt/streamd/bin/python install --no-cache-dir .
# The command of the Spark jobs, which are not here: Dockerfile.spark has them.
RUN rm /opt/streamd/bin/streamd-spark
# What starts a nats-server starts this one.
RUN ln -s streamd /opt/streamd/bin/nats-server
RUN /opt/streamd/bin/python -m compileall -q /opt/streamd/lib

FROM ${BASE}
RUN groupadd --system --gid 10001 streamd \
 && useradd --system --uid 10001 --gid streamd --no-create-home --shell /usr/sbin/nologin streamd \
 && install -d -o streamd -g streamd /data
COPY --from=build /opt/streamd /opt/streamd
COPY configs /etc/streamd
ENV PATH=/opt/streamd/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER streamd
VOLUME /data
EXPOSE 4222 6222 8222
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=10s --start-period=60s --retries=3 CMD ["streamctl", "health", "--pid", "1"]
ENTRYPOINT ["streamd"]
CMD ["-a", "0.0.0.0", "-js", "-sd", "/data", "-m", "8222"]
