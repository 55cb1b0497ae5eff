//! The control edge: an HTTP server with a JSON API and Prometheus metrics inside every running part, and the client
//! that the commands use. Nothing of it is on the data path; it may wait and allocate.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /v1/status` | [`api::Status`] |
//! | `GET /v1/events` | [`crate::events`] |
//! | `GET /v1/volumes` | list of [`api::Volume`] |
//! | `POST /v1/volumes` with [`api::Create`] | [`api::Volume`], when it is ready |
//! | `GET /v1/volumes/{name}` | [`api::Volume`] |
//! | `PATCH /v1/volumes/{name}` with [`api::Patch`] | [`api::Volume`] |
//! | `DELETE /v1/volumes/{name}` | empty |
//! | `GET /v1/nodes` | list of [`api::Node`] |
//! | `POST /v1/nodes` with [`api::AddNodes`] | list of [`api::Node`] |
//! | `DELETE /v1/nodes/{id}` | list of [`api::Node`] |
//! | `PUT`, `DELETE /v1/nodes/{id}/drain` | list of [`api::Node`] |
//! | `PUT /v1/nodes/{id}/replacement` with [`api::NodePlace`] | list of [`api::Node`] |
//! | `PUT`, `DELETE /v1/rebalance` | list of [`api::Node`] |
//! | `GET /metrics` | OpenMetrics text |
//! | `GET /healthz` | 200 while the process works, else 503 |
//! | `GET /readyz` | 200 while it serves what it is to serve, else 503 and a reason on each line |
//!
//! While the registry does not answer, volumes and nodes are told as of before, with a `Warning` header of code 110.
//!
//! A change of what another gateway leads is answered with status 307 and the place to ask ([`lead`]).
//!
//! An error is an HTTP status with [`api::Problem`]. The API has no authentication: it listens on the loopback unless
//! told otherwise, and every change needs a JSON body or a method that browsers do not send across origins.

pub mod address;
pub mod api;
pub mod client;
mod lead;
pub mod server;
