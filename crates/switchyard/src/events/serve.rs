//! `GET /v1/events?since=N&wait=SECONDS`: the events after number N. With `wait` an answer that would be empty comes
//! with the next event, or after so many seconds.

use super::{api, journal};
use crate::control::api::Problem;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Events of one answer; the next question goes on.
const EVENTS_MAX: usize = 1000;
/// An answer waits so long at most, in seconds.
pub const WAIT_MAX: u64 = 60;
/// Questions that wait at once; one more is refused.
const WAITING_MAX: usize = 32;

static WAITING: Semaphore = Semaphore::const_new(WAITING_MAX);

/// The question.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Ask {
    since: u64,
    wait: u64,
}

/// The route, for any control address.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/v1/events", get(answer))
}

async fn answer(Query(ask): Query<Ask>) -> Response {
    let wait = Duration::from_secs(ask.wait.min(WAIT_MAX));
    let place = match wait.is_zero() {
        true => None,
        false => match WAITING.try_acquire() {
            Ok(place) => Some(place),
            Err(_) => {
                let error = format!("{WAITING_MAX} others wait for events already: ask without `wait`");
                return (StatusCode::SERVICE_UNAVAILABLE, Json(Problem { error })).into_response();
            }
        },
    };
    let (page, began) = journal::after(ask.since, EVENTS_MAX, wait).await;
    drop(place);
    Json(api::Page::new(&page, began)).into_response()
}
