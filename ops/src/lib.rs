//! What stands behind the `flashgate` command: start a whole private shop, talk to its admin API,
//! send a crowd of buyers at it and judge the outcome.
//!
//! Nothing here decides about a unit: the command reaches the system through the edge, as a buyer,
//! and through the origin's admin API, as an operator. It never opens Redis, RabbitMQ or Postgres.

pub mod admin;
pub mod child;
pub mod cli;
pub mod export;
pub mod provider;
pub mod rehearse;
pub mod secrets;
pub mod shop;
pub mod stack;
pub mod state;
pub mod steps;
pub mod times;
pub mod torment;
pub mod values;
pub mod workerd;
