//! The HTTP API. One file per endpoint under `routes`, each in the order: error, its mapping to a
//! problem, docs, handler, tests.

pub mod extract;
pub mod layers;
pub mod problem;
pub mod routes;
pub mod server;

use crate::App;
use axum::{
    Router,
    routing::{get, post},
};
use flashgate_shared::problem::ProblemKind;
use problem::Refusal;
use std::sync::Arc;

/// What whoever runs the process asks, without a credential.
fn health_routes() -> Router<Arc<App>> {
    use routes::health;
    Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .fallback(async || Refusal::from(ProblemKind::NotFound))
        .method_not_allowed_fallback(async || Refusal::from(ProblemKind::MethodNotAllowed))
}

/// The routes of a process that serves nobody else.
pub fn health_router(app: Arc<App>) -> Router {
    health_routes().with_state(app)
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    use routes::*;
    health_routes()
        .route("/v1/sales/{sale}/claim", post(claim::handler))
        .route("/v1/sales/{sale}/enter", post(enter::handler))
        .route("/v1/sales/{sale}/my-claim", get(my_claim::handler))
        .route("/v1/claims/{id}", get(claim_status::handler))
        .route("/v1/claims/{id}/events", get(events::handler))
        .route("/v1/claims/{id}/release", post(let_go::handler))
        .route("/v1/orders", post(orders::handler))
        .route("/v1/edge/sales/{sale}", get(edge_sale::handler))
        .route("/v1/edge/leases", post(leases::handler))
        .route("/v1/payments/notices", post(notices::handler))
        .route("/v1/admin/sales", get(admin_sales::list).post(admin_create::handler))
        .route("/v1/admin/sales/{sale}", get(admin_sales::show).put(admin_change::handler))
        .route("/v1/admin/sales/{sale}/versions/{version}", get(admin_change::version))
        .route("/v1/admin/sales/{sale}/pause", post(admin_state::pause))
        .route("/v1/admin/sales/{sale}/resume", post(admin_state::resume))
        .route("/v1/admin/sales/{sale}/close", post(admin_state::close))
        .route("/v1/admin/sales/{sale}/rebuild", post(admin_rebuild::order))
        .route("/v1/admin/sales/{sale}/rebuilds", get(admin_rebuild::list))
        .route("/v1/admin/sales/{sale}/document", get(admin_document::handler))
        .route("/v1/admin/sales/{sale}/reconcile", post(admin_reconcile::handler))
        .route("/v1/admin/sales/{sale}/repairs", get(admin_reconcile::repairs))
        .route("/v1/admin/sales/{sale}/dead-letters", get(admin_dead_letters::list))
        .route("/v1/admin/sales/{sale}/dead-letters/{letter}/replay", post(admin_dead_letters::replay))
        .route("/v1/admin/sales/{sale}/check", get(admin_check::handler))
        .route("/v1/admin/sales/{sale}/erasures", post(admin_erase::handler))
        .route("/v1/admin/sales/{sale}/report", get(admin_reconcile::report))
        .route("/v1/admin/sales/{sale}/ledger", get(ledger::handler))
        .route("/v1/admin/sales/{sale}/audit", get(audit::handler))
        .route("/v1/admin/sales/{sale}/traffic", get(traffic::handler))
        .with_state(app)
}
