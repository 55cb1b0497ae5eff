//! Stacks that talk with each other, with scripts, and with what attacks them.

mod common;
mod defence;
mod frames;
mod network;
mod scripts;
