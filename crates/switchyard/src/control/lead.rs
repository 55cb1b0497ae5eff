//! The way to the gateway that leads. A gateway that is asked for what another one leads answers with status 307. So the
//! commands, and `curl --location`, ask the other one by themselves.
//!
//! Invariants:
//! - A way is shown only to an address that is the same gateway's from everywhere it is shown to. A loopback address is
//!   shown by a gateway of the same machine, and followed by a client of that machine.
//! - A way names the rack. A gateway of another rack that has the address by now refuses the request.

use super::api::Problem;
use crate::operator::Part;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use host::operator::LeadPlace;
use std::net::SocketAddr;
use std::sync::Arc;
use uuid::Uuid;

/// Names the rack that a request is for.
const RACK: &str = "rack=";

/// Where the lead's control API is: an extension of the refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    base: String,
    rack: Uuid,
}

/// The refusal of a gateway that does not lead.
pub(super) fn refuse(place: &LeadPlace) -> Response {
    let way = way(place);
    let mut error = place.to_string();
    if way.is_none() && !place.control.is_empty() {
        error = format!(
            "the gateway at {}/udp leads, and can be asked on its own machine only, at {}: ask there, or start that gateway \
             with a --control address that others reach",
            place.gateway, place.control
        );
    }
    let code = match way {
        Some(_) => StatusCode::TEMPORARY_REDIRECT,
        None => StatusCode::MISDIRECTED_REQUEST,
    };
    let mut response = (code, Json(Problem { error })).into_response();
    if let Some(way) = way {
        response.extensions_mut().insert(way);
    }
    response
}

/// The way to the lead, if its address is one here.
fn way(place: &LeadPlace) -> Option<Way> {
    let host = |udp: &str| udp.rsplit_once(':').map(|(host, _)| host.to_owned());
    let address: SocketAddr = place.control.strip_prefix("http://")?.parse().ok()?;
    let is_here = host(&place.gateway) == host(&place.asked);
    let is_one = address.port() > 0 && !address.ip().is_unspecified();
    let shows = is_one && (is_here || !address.ip().is_loopback());
    shows.then(|| Way {
        base: place.control.clone(),
        rack: place.rack,
    })
}

/// Completes the way with what was asked for, and refuses what is for another rack.
pub(super) async fn direct(State(part): State<Arc<Part>>, request: Request, next: Next) -> Response {
    let uri = request.uri().clone();
    if let Some(rack) = rack_of(&uri)
        && let Some(refusal) = of_another_rack(part, rack).await
    {
        return refusal;
    }
    let mut response = next.run(request).await;
    if let Some(way) = response.extensions_mut().remove::<Way>()
        && let Ok(location) = HeaderValue::try_from(location(&way, &uri))
    {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

fn location(way: &Way, uri: &Uri) -> String {
    let others = uri.query().into_iter().flat_map(|query| query.split('&'));
    let others = others.filter(|item| !item.is_empty() && !item.starts_with(RACK));
    let query: Vec<&str> = others.collect();
    let joint = if query.is_empty() { "" } else { "&" };
    format!(
        "{}{}?{}{joint}{RACK}{}",
        way.base,
        uri.path(),
        query.join("&"),
        way.rack
    )
}

/// The rack that a request is for, if it says so.
fn rack_of(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|item| item.strip_prefix(RACK))
}

async fn of_another_rack(part: Arc<Part>, wanted: &str) -> Option<Response> {
    let rack = tokio::task::spawn_blocking(move || part.rack_id()).await;
    match rack {
        Ok(Ok(rack)) if wanted.parse() == Ok(rack) => None,
        Ok(Err(refusal)) => {
            let error = refusal.to_string();
            Some((StatusCode::SERVICE_UNAVAILABLE, Json(Problem { error })).into_response())
        }
        Ok(Ok(rack)) => {
            let error =
                format!("this is rack {rack}, and the request is for rack {wanted}: correct --control");
            Some((StatusCode::MISDIRECTED_REQUEST, Json(Problem { error })).into_response())
        }
        Err(_) => Some(StatusCode::INTERNAL_SERVER_ERROR.into_response()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(gateway: &str, control: &str) -> LeadPlace {
        LeadPlace {
            rack: Uuid::from_u128(7),
            asked: "10.0.0.1:8888".into(),
            gateway: gateway.into(),
            control: control.into(),
        }
    }

    #[test]
    fn a_way_is_shown_only_to_an_address_that_is_the_leads_from_here() {
        for (gateway, control, shown) in [
            ("10.0.0.2:8888", "http://10.0.0.2:9180", true),
            ("10.0.0.2:8888", "http://[fd00::2]:9180", true),
            // Of the same machine.
            ("10.0.0.1:8889", "http://127.0.0.1:9181", true),
            // Of another machine: here it is somebody else's.
            ("10.0.0.2:8888", "http://127.0.0.1:9180", false),
            ("10.0.0.2:8888", "http://0.0.0.0:9180", false),
            ("10.0.0.2:8888", "http://10.0.0.2:0", false),
            ("10.0.0.2:8888", "", false),
        ] {
            let place = place(gateway, control);
            assert_eq!(way(&place).is_some(), shown, "{control}");
            let code = match shown {
                true => StatusCode::TEMPORARY_REDIRECT,
                false => StatusCode::MISDIRECTED_REQUEST,
            };
            assert_eq!(refuse(&place).status(), code, "{control}");
        }
    }

    #[test]
    fn a_way_keeps_the_request_and_names_the_rack_once() {
        let way = way(&place("10.0.0.2:8888", "http://10.0.0.2:9180")).unwrap();
        let rack = Uuid::from_u128(7);
        for (asked, shown) in [
            ("/v1/nodes/3", format!("/v1/nodes/3?rack={rack}")),
            ("/v1/volumes?a=b&rack=x", format!("/v1/volumes?a=b&rack={rack}")),
        ] {
            let uri: Uri = asked.parse().unwrap();
            assert_eq!(location(&way, &uri), format!("http://10.0.0.2:9180{shown}"));
        }
        let uri: Uri = format!("/v1/volumes?a=b&rack={rack}").parse().unwrap();
        assert_eq!(rack_of(&uri), Some(rack.to_string().as_str()));
    }
}
