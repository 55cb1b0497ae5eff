//! The HTTP server: one thread with a single-threaded tokio beside the cores. Work on the rack waits for cores and
//! nodes, so each request's work runs on tokio's blocking threads.

use super::api::{Create, Exchange, Problem, Resize};
use crate::events;
use crate::failure::Failure;
use crate::metrics;
use crate::operator::{Part, Refusal};
use anyhow::Context;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base::Duration;
use host::operator::Refusal as Refused;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Binds early, so that an address in use shows before anything is started.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            let text =
                format!("{address}/tcp is in use: stop its user, or choose another address with --control");
            Failure::InUse(text).into()
        }
        _ => anyhow::Error::from(error).context(format!("cannot listen on {address}/tcp (key control)")),
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Server {
    /// Serves `part` until it is dropped.
    pub fn start(listener: TcpListener, part: Arc<Part>) -> anyhow::Result<Self> {
        Self::with(listener, routes(part))
    }

    /// Serves `routes` until it is dropped.
    pub fn with(listener: TcpListener, routes: Router) -> anyhow::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(8)
            .build()
            .context("cannot start the thread of the control server")?;
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let listener = match tokio::net::TcpListener::from_std(listener) {
                        Ok(listener) => listener,
                        Err(error) => {
                            return eprintln!("switchyard: the control server cannot start: {error}");
                        }
                    };
                    let serving = axum::serve(listener, routes).into_future();
                    tokio::select! {
                        result = serving => if let Err(error) = result {
                            eprintln!("switchyard: the control server has stopped: {error}");
                        },
                        _ = stopped => {}
                    }
                });
                runtime.shutdown_background();
            })
            .context("cannot start the thread of the control server")?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Shared = State<Arc<Part>>;

fn routes(part: Arc<Part>) -> Router {
    Router::new()
        .route(
            "/",
            get(async || "Switchyard: /v1/status, /v1/events, /v1/volumes, /v1/exchanges, /metrics\n"),
        )
        .route(
            "/v1/status",
            get(async |part: Shared| run(part, |part| part.status()).await),
        )
        .route("/v1/volumes", get(list).post(create))
        .route("/v1/volumes/{name}", get(show).patch(resize).delete(delete))
        .route("/v1/exchanges", post(exchange))
        .route("/metrics", get(scrape))
        .fallback(async || {
            let error = "no such resource: see /v1/status, /v1/events, /v1/volumes, /v1/exchanges, /metrics"
                .to_owned();
            (StatusCode::NOT_FOUND, Json(Problem { error }))
        })
        .merge(events::routes())
        .with_state(part)
}

async fn list(part: Shared) -> Response {
    run(part, |part| part.volumes()).await
}

async fn create(part: Shared, Json(create): Json<Create>) -> Response {
    run(part, move |part| part.create_volume(&create, Duration::ZERO)).await
}

async fn show(part: Shared, Path(name): Path<String>) -> Response {
    run(part, move |part| part.volume(&name)).await
}

async fn resize(part: Shared, Path(name): Path<String>, Json(resize): Json<Resize>) -> Response {
    run(part, move |part| part.resize_volume(name, resize.size.0)).await
}

async fn delete(part: Shared, Path(name): Path<String>) -> Response {
    run(part, move |part| part.delete_volume(name)).await
}

async fn exchange(part: Shared, Json(exchange): Json<Exchange>) -> Response {
    run(part, move |part| part.exchange(exchange)).await
}

async fn scrape(State(part): Shared) -> Response {
    match tokio::task::spawn_blocking(move || metrics::text(&part)).await {
        Ok(Ok(text)) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Ok(Err(refusal)) => answer(refusal),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Runs `work` where it may wait; its result as JSON.
async fn run<T: serde::Serialize + Send + 'static>(
    State(part): Shared,
    work: impl FnOnce(&Part) -> Result<T, Refusal> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(move || work(&part)).await {
        Ok(Ok(result)) => Json(result).into_response(),
        Ok(Err(refusal)) => answer(refusal),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn answer(refusal: Refusal) -> Response {
    let code = match &refusal {
        Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
        Refusal::Operator(refused) => code(refused),
        Refusal::Stopped(_) | Refusal::NoGateway => StatusCode::SERVICE_UNAVAILABLE,
    };
    let error = refusal.to_string();
    (code, Json(Problem { error })).into_response()
}

fn code(refused: &Refused) -> StatusCode {
    match refused {
        Refused::Name(_)
        | Refused::Size(_)
        | Refused::Replicas(_)
        | Refused::Shrinks { .. }
        | Refused::Exchange(_) => StatusCode::BAD_REQUEST,
        Refused::Unknown(_) => StatusCode::NOT_FOUND,
        Refused::Exists(_) => StatusCode::CONFLICT,
        Refused::NoRoom(_) => StatusCode::INSUFFICIENT_STORAGE,
        Refused::Stops => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
