//! The endpoints, one file each.

pub mod admin_change;
pub mod admin_check;
pub mod admin_create;
pub mod admin_dead_letters;
pub mod admin_document;
pub mod admin_erase;
pub mod admin_rebuild;
pub mod admin_reconcile;
pub mod admin_sales;
pub mod admin_state;
pub mod audit;
pub mod claim;
pub mod claim_status;
pub mod edge_sale;
pub mod enter;
pub mod events;
pub mod health;
pub mod leases;
pub mod ledger;
pub mod let_go;
pub mod my_claim;
pub mod notices;
pub mod orders;
pub mod traffic;
