//! Parts of the library that can be tested outside of a program: addresses, and sets of epoll(7).

#![allow(missing_docs, dead_code, clippy::disallowed_types, clippy::disallowed_methods)]

#[path = "../src/net/address.rs"]
mod address;
#[path = "../src/net/set.rs"]
mod set;
