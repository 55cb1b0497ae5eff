//! Tests of the store as its drivers see it.

mod commands;
mod model;
mod parser;
mod rack;
