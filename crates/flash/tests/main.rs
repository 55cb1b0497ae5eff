//! A software-defined SSD on media that the tests play.

mod amplification;
mod common;
mod crash;
mod golden;
mod group;
mod machine;
mod model;
