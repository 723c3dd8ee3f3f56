//! `flashgate sale`: what marketing and operators do with sales.

use super::{
    Where,
    change::{RollbackArgs, SetArgs},
    check,
    erase::EraseArgs,
    publish::{self, AtEdges},
    rebuild, reconcile, say, stdout_colour, takes_stdout, write_json,
};
use crate::{
    admin::AdminError,
    export,
    steps::paint,
    times,
    values::{price, show_price},
};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use flashgate_shared::{
    Money, SaleId,
    problem::ProblemKind,
    sale::{AddressLimits, SaleConfig},
    wire::AdminSale,
};
use std::{
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Most buckets that a sale gets when none are asked for; each holds at least ten units.
const BUCKETS_DEFAULT_MAX: u32 = 10;
/// The least backlog limit that a sale gets when none is asked for.
const BACKLOG_DEFAULT_MIN: u32 = 1_000;

/// Arguments of `sale`.
#[derive(Debug, Args)]
pub(super) struct SaleArgs {
    #[command(flatten)]
    place: Where,
    /// Write the answer as JSON to this file (- for standard output)
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(subcommand)]
    command: SaleCommand,
}

#[derive(Debug, Subcommand)]
enum SaleCommand {
    /// Put something on sale
    Create(Box<CreateArgs>),
    /// List all sales
    List,
    /// Show one sale
    Show(One),
    /// Stop a sale for now; buyers are asked to wait
    Pause(One),
    /// Go on with a paused sale
    Resume(One),
    /// End a sale for good
    Close(One),
    /// Rebuild the gate from the ledger; buyers are asked to wait meanwhile
    Rebuild(One),
    /// Whether everything is ready for a sale: a plain yes or no; exit code 1 for no
    Check(AtEdges),
    /// Show messages that could not be settled, or send one of them again
    DeadLetters(DeadLettersArgs),
    /// Erase who bought in a closed sale: one buyer, or everybody; the books stay whole
    Erase(EraseArgs),
    /// Tell what became of a sale, with the heads of its ledger to be published
    Report(One),
    /// Write the sale's ledger to a file, for `flashgate audit --offline`
    Export(ExportArgs),
    /// Change settings; edges follow within a second, or ahead of time by `publish`
    Set(Box<SetArgs>),
    /// Go back to the settings of an older version, as a new one
    Rollback(RollbackArgs),
    /// Put what the sale is now into the edges' stores; exit code 1 if one refuses
    Publish(AtEdges),
    /// Show where the edges' stores differ from the origin; exit code 1 if one does
    Diff(AtEdges),
}

#[derive(Debug, Args)]
struct One {
    /// The sale
    #[arg(value_name = "SALE")]
    id: SaleId,
}

#[derive(Debug, Args)]
struct DeadLettersArgs {
    /// The sale
    #[arg(value_name = "SALE")]
    id: SaleId,
    /// Send this one again
    #[arg(long, value_name = "ID")]
    replay: Option<i64>,
}

impl DeadLettersArgs {
    async fn run(&self, place: &Where, json: Option<&PathBuf>) -> Result<ExitCode> {
        let admin = place.admin()?;
        let letters = match self.replay {
            Some(letter) => vec![admin.replay(&self.id, letter).await?],
            None => admin.dead_letters(&self.id).await.map_err(|e| unknown_sale(e, &self.id))?,
        };
        if let Some(path) = json {
            write_json(path, &letters)?;
        }
        if takes_stdout(json) {
            return Ok(ExitCode::SUCCESS);
        }
        if letters.is_empty() {
            say(&format!("{}: no dead letters", self.id))?;
        }
        for letter in &letters {
            let claim = letter.envelope.as_ref().map_or("unreadable".to_owned(), |e| format!("claim {}", e.claim_id));
            let again = letter.replayed_at_ms.map(|at| format!(", sent again {}", times::show(at))).unwrap_or_default();
            say(&format!("  {}  {}  {claim}: {}{again}", letter.id, times::show(letter.seen_at_ms), letter.why))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// The sale
    #[arg(value_name = "SALE")]
    id: SaleId,
    /// The file, one JSON value a line (- for standard output)
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

impl ExportArgs {
    async fn run(&self, place: &Where) -> Result<ExitCode> {
        let admin = place.admin()?;
        let named = |error: anyhow::Error| match error.downcast::<AdminError>() {
            Ok(error) => unknown_sale(error, &self.id),
            Err(error) => error,
        };
        if self.to == Path::new("-") {
            let mut out = std::io::stdout().lock();
            export::write(&admin, &self.id, &mut out).await.map_err(named)?;
            return Ok(ExitCode::SUCCESS);
        }
        let file = File::create(&self.to).with_context(|| format!("cannot write {}", self.to.display()))?;
        let mut out = BufWriter::new(file);
        let entries = export::write(&admin, &self.id, &mut out).await.map_err(named)?;
        say(&format!("{entries} entries in {}", self.to.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// The sale's id, part of its address: a-z, 0-9 and - [default: made from the title]
    #[arg(long)]
    id: Option<SaleId>,
    /// What buyers see
    #[arg(long)]
    title: String,
    /// A sentence for buyers
    #[arg(long, default_value = "")]
    description: String,
    /// Units
    #[arg(long, value_name = "UNITS")]
    stock: u32,
    /// Price of one unit, such as "199.00 EUR"
    #[arg(long)]
    price: String,
    /// The opening, with a zone: "2026-12-01T20:00:00 Europe/Berlin", RFC 3339, "in 30s" or now
    #[arg(long, value_name = "TIME")]
    opens: String,
    /// The end, written like --opens [default: --lasts after the opening]
    #[arg(long, value_name = "TIME", conflicts_with = "lasts")]
    closes: Option<String>,
    /// How long it lasts
    #[arg(long, value_name = "LENGTH", default_value = "1h")]
    lasts: String,
    /// Most units in one claim
    #[arg(long, value_name = "UNITS", default_value_t = 1)]
    per_buyer: u32,
    /// How long a buyer may take to start paying
    #[arg(long, value_name = "LENGTH", default_value = "10m")]
    pay_window: String,
    /// How long after that a payment made in time may arrive
    #[arg(long, value_name = "LENGTH", default_value = "30s")]
    grace: String,
    /// A buyer whose order expired may claim again
    #[arg(long)]
    second_try: bool,
    /// Claims admitted a second, as a multiple of the stock
    #[arg(long, value_name = "FACTOR", default_value_t = 5.0)]
    admit_factor: f64,
    /// Entries admitted a second
    #[arg(long, value_name = "RATE", default_value_t = 4_000.0)]
    enter_rate: f64,
    /// Redis buckets the stock is spread over [default: by the stock, at most 10]
    #[arg(long)]
    buckets: Option<u16>,
    /// Rows of the ledger that the stock is split over: more let settling use several connections at once
    #[arg(long, value_name = "ROWS", default_value_t = 1)]
    shards: u16,
    /// Most claims that may wait to be settled [default: the stock, at least 1000]
    #[arg(long, value_name = "CLAIMS")]
    backlog_limit: Option<u32>,
}

impl CreateArgs {
    /// The settings; every mistake is told in one line, before anything is asked of the shop.
    fn sale(&self, now: jiff::Timestamp) -> Result<SaleConfig> {
        let opens = times::parse(&self.opens, now).context("--opens")?;
        anyhow::ensure!(
            opens >= now,
            "--opens: {} is past; write now to open at once",
            times::show(opens.as_millisecond())
        );
        let closes_at_ms = match &self.closes {
            Some(text) => times::parse(text, now).context("--closes")?.as_millisecond(),
            None => opens.as_millisecond() + times::length_ms(&self.lasts).context("--lasts")?,
        };
        let per_bucket = (self.stock / 10).clamp(1, BUCKETS_DEFAULT_MAX);
        let sale = SaleConfig {
            id: match &self.id {
                Some(id) => id.clone(),
                None => slug(&self.title).context("--id: the title gives none; name one of a-z, 0-9 and -")?,
            },
            version: 1,
            title: self.title.clone(),
            description: self.description.clone(),
            price: self.price()?,
            total: self.stock,
            per_buyer_limit: self.per_buyer,
            opens_at_ms: opens.as_millisecond(),
            closes_at_ms,
            buckets: self.buckets.unwrap_or(u16::try_from(per_bucket)?),
            shards: self.shards,
            admit_factor: self.admit_factor,
            enter_rate_per_s: self.enter_rate,
            pay_window_ms: times::length_ms(&self.pay_window).context("--pay-window")?,
            grace_ms: times::length_ms(&self.grace).context("--grace")?,
            second_try: self.second_try,
            anonymous_entry: true,
            backlog_limit: self.backlog_limit.unwrap_or(self.stock.max(BACKLOG_DEFAULT_MIN)),
            address_limits: AddressLimits::default(),
        };
        sale.validate()?;
        Ok(sale)
    }

    fn price(&self) -> Result<Money> {
        price(&self.price).map_err(anyhow::Error::msg).context("--price")
    }
}

/// An id made from a title: `A hundred phones!` → `a-hundred-phones`.
pub(super) fn slug(title: &str) -> Option<SaleId> {
    let words: Vec<_> = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let mut slug = words.join("-").to_ascii_lowercase();
    slug.truncate(flashgate_shared::limits::SALE_ID_BYTES);
    slug.trim_end_matches('-').parse().ok()
}

pub(super) async fn run(args: SaleArgs) -> Result<ExitCode> {
    // What is wrong with the settings is told even where no shop runs.
    let new = match &args.command {
        SaleCommand::Create(create) => Some(create.sale(jiff::Timestamp::now())?),
        _ => None,
    };
    match &args.command {
        SaleCommand::Publish(at) => return publish::publish(at, &args.place, args.json.as_ref()).await,
        SaleCommand::Diff(at) => return publish::diff(at, &args.place, args.json.as_ref()).await,
        SaleCommand::Check(at) => return check::run(at, &args.place, args.json.as_ref()).await,
        SaleCommand::DeadLetters(dead) => return dead.run(&args.place, args.json.as_ref()).await,
        SaleCommand::Erase(erase) => return erase.run(&args.place, args.json.as_ref()).await,
        SaleCommand::Report(one) => return reconcile::report(&one.id, &args.place, args.json.as_ref()).await,
        SaleCommand::Export(export) => return export.run(&args.place).await,
        SaleCommand::Rebuild(one) => return rebuild::run(&one.id, &args.place, args.json.as_ref()).await,
        _ => {}
    }
    let admin = args.place.admin()?;
    let named = |id: &SaleId| {
        let id = id.clone();
        move |error| unknown_sale(error, &id)
    };
    let sale = match (&args.command, &new) {
        (_, Some(sale)) => admin.create_sale(sale).await.map_err(|e| exists(e, &sale.id))?,
        (SaleCommand::Show(one), _) => admin.show(&one.id).await.map_err(named(&one.id))?,
        (SaleCommand::Pause(one), _) => admin.pause(&one.id).await.map_err(named(&one.id))?,
        (SaleCommand::Resume(one), _) => admin.resume(&one.id).await.map_err(named(&one.id))?,
        (SaleCommand::Close(one), _) => admin.close(&one.id).await.map_err(named(&one.id))?,
        (SaleCommand::Set(set), _) => set.run(&admin).await?,
        (SaleCommand::Rollback(back), _) => back.run(&admin).await?,
        (
            SaleCommand::List
            | SaleCommand::Create(_)
            | SaleCommand::Publish(_)
            | SaleCommand::Diff(_)
            | SaleCommand::Export(_)
            | SaleCommand::Report(_)
            | SaleCommand::DeadLetters(_)
            | SaleCommand::Erase(_)
            | SaleCommand::Check(_)
            | SaleCommand::Rebuild(_),
            _,
        ) => return list(&args, &admin.list().await?),
    };
    if let Some(path) = &args.json {
        write_json(path, &sale)?;
    }
    if !takes_stdout(args.json.as_ref()) {
        say(&card(&sale))?;
        if new.is_some()
            && let Some(edge) = args.place.shop()?.and_then(|shop| shop.edge_urls.into_iter().next())
        {
            say(&format!("  page      {edge}/s/{}", sale.sale.id))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn unknown_sale(error: AdminError, id: &SaleId) -> anyhow::Error {
    match error.kind() {
        Some(ProblemKind::NotFound) => {
            anyhow::anyhow!("there is no sale {id}; `flashgate sale list` shows those there are")
        }
        _ => error.into(),
    }
}

fn exists(error: AdminError, id: &SaleId) -> anyhow::Error {
    match error.kind() {
        Some(ProblemKind::WrongState) => {
            anyhow::anyhow!("{error}; name another with --id, or look at `flashgate sale show {id}`")
        }
        _ => error.into(),
    }
}

/// One sale, for a person.
fn card(sale: &AdminSale) -> String {
    let s = &sale.sale;
    let on_offer = sale.on_offer.map_or_else(|| "unknown: the gate does not answer".to_owned(), |n| n.to_string());
    let rows = if s.shards > 1 { format!(" and {} rows of the ledger", s.shards) } else { String::new() };
    let paint = |text: &str| paint(stdout_colour(), "1", text);
    let mut text = format!("{}  {}\n", paint(s.id.as_str()), s.title);
    for (name, value) in [
        ("phase", format!("{} (state {})", sale.phase, state(sale))),
        ("opens", both(s.opens_at_ms)),
        ("closes", both(s.closes_at_ms)),
        ("price", show_price(&s.price)),
        ("stock", format!("{} in {} buckets{rows}, at most {} a buyer", s.total, s.buckets, s.per_buyer_limit)),
        ("sold", sale.sold.to_string()),
        ("on offer", on_offer),
        ("admits", format!("{} × stock a second", s.admit_factor)),
        ("to pay", format!("{} s, and {} s of grace", s.pay_window_ms / 1000, s.grace_ms / 1000)),
    ] {
        text += &format!("  {name:<9} {value}\n");
    }
    text.trim_end().to_owned()
}

fn state(sale: &AdminSale) -> String {
    match sale.state_after {
        Some(after) => format!("{}, then {after}", sale.state),
        None => sale.state.to_string(),
    }
}

fn both(ms: i64) -> String {
    format!("{} ({})", times::show_here(ms), times::show(ms))
}

fn list(args: &SaleArgs, sales: &[AdminSale]) -> Result<ExitCode> {
    if let Some(path) = &args.json {
        write_json(path, &sales)?;
    }
    if takes_stdout(args.json.as_ref()) {
        return Ok(ExitCode::SUCCESS);
    }
    if sales.is_empty() {
        say("no sales yet; `flashgate sale create` makes one")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(["sale", "phase", "opens", "sold", "of", "on offer"]);
    for sale in sales {
        table.add_row([
            sale.sale.id.to_string(),
            sale.phase.to_string(),
            times::show_here(sale.sale.opens_at_ms),
            sale.sold.to_string(),
            sale.sale.total.to_string(),
            sale.on_offer.map_or_else(|| "?".to_owned(), |n| n.to_string()),
        ]);
    }
    say(&table.to_string())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        create: CreateArgs,
    }

    fn made(more: &[&str]) -> Result<SaleConfig> {
        let mut line = vec!["create", "--title", "A hundred phones!", "--stock", "100", "--price", "199.00 EUR"];
        line.extend(more);
        if !more.contains(&"--opens") {
            line.extend(["--opens", "in 60s"]);
        }
        Line::try_parse_from(line)?.create.sale("2026-11-30T12:00:00Z".parse()?)
    }

    #[test]
    fn a_sale_is_made_from_what_a_person_writes() {
        let sale = made(&[]).unwrap();
        assert_eq!(sale.id.as_str(), "a-hundred-phones");
        assert_eq!((sale.total, sale.buckets, sale.backlog_limit), (100, 10, 1_000));
        assert_eq!(sale.closes_at_ms - sale.opens_at_ms, 3_600_000);
        assert_eq!((sale.pay_window_ms, sale.grace_ms, sale.price.amount_minor), (600_000, 30_000, 19_900));
        let sale =
            made(&["--opens", "2026-12-01T20:00:00 Europe/Berlin", "--closes", "2026-12-01T21:30:00+01:00"]).unwrap();
        assert_eq!(times::show(sale.opens_at_ms), "2026-12-01T19:00:00Z");
        assert_eq!(sale.closes_at_ms - sale.opens_at_ms, 5_400_000);
    }

    #[test]
    fn each_mistake_is_one_line_that_names_its_option_or_field() {
        for (more, says) in [
            (vec!["--opens", "2026-12-01T20:00:00"], "--opens: \"2026-12-01T20:00:00\" has no time zone"),
            (vec!["--opens", "2026-11-30T11:00:00Z"], "--opens: 2026-11-30T11:00:00Z is past"),
            (vec!["--closes", "2026-11-30T11:00:00Z"], "closes_at_ms: must be after"),
            (vec!["--closes", "soon"], "--closes: "),
            (vec!["--lasts", "long"], "--lasts: "),
            (vec!["--pay-window", "0s"], "pay_window_ms: must be more than 0"),
            (vec!["--per-buyer", "101"], "per_buyer_limit: must be 1 to 100"),
            (vec!["--admit-factor", "0"], "admit_factor: must be more than 0"),
        ] {
            let error = format!("{:#}", made(&more).unwrap_err());
            assert!(error.contains(says) && !error.contains('\n'), "{more:?}: {error}");
        }
    }

    #[test]
    fn ids_come_from_titles() {
        assert_eq!(slug("  Phones, 2nd round ").unwrap().as_str(), "phones-2nd-round");
        assert_eq!(slug(&"x".repeat(100)).unwrap().as_str().len(), 64);
        assert_eq!(slug("手机"), None);
    }
}
