# syntax=docker/dockerfile:1
# One image for every process: the command decides (serve, worker, reconciler, migrate, target).

# The environment of development and CI builds the wheel; nothing is fetched that the lock does
# not name with its hash.
FROM python:3.13-slim AS wheel
WORKDIR /src
COPY requirements.lock ./
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
COPY contracts ./contracts
COPY adapters ./adapters
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# What runs: the runtime dependencies alone, then the wheel.
FROM python:3.13-slim AS installed
COPY requirements.runtime.lock ./
RUN python -m venv /opt/effect-broker \
 && /opt/effect-broker/bin/pip install --no-cache-dir --disable-pip-version-check \
      --require-hashes -r requirements.runtime.lock
COPY --from=wheel /wheels /wheels
RUN /opt/effect-broker/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl

FROM python:3.13-slim
LABEL org.opencontainers.image.title="effect-broker" \
      org.opencontainers.image.licenses="MIT"
# A fixed number, so that mounted secrets and volumes can be given to it.
RUN useradd --system --uid 10001 --user-group --no-create-home effect-broker \
 && install -d -o effect-broker -g effect-broker -m 0700 /var/lib/effect-broker
COPY --from=installed /opt/effect-broker /opt/effect-broker
ENV PATH=/opt/effect-broker/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    EFFECT_BROKER_ENV=production
USER 10001:10001
WORKDIR /var/lib/effect-broker
EXPOSE 8080
# A worker ends its sends within their deadlines before it stops.
STOPSIGNAL SIGTERM
# For the API. A process that serves nothing switches the check off where it is started.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
CMD ["effect-broker", "serve", "--host", "0.0.0.0", "--port", "8080"]
