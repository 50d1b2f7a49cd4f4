#include "weft/launch/internal/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>

#include "weft/base/error.h"
#include "weft/base/json/error_file.h"
#include "weft/base/random.h"
#include "weft/comm/init.h"
#include "weft/launch/internal/node_reports.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/internal/report.h"

namespace weft::launch::internal {
namespace {

constexpr std::size_t kSecretBytes = 32;
constexpr int kSecretTimeoutMs = 10'000;
// A rank has a pidfd, a link and two pipes. The store process, a start and a report need some for a
// while.
constexpr int kDescriptors = 32, kDescriptorsPerRank = 4;

[[noreturn]] void unavailable(const std::string& what) {
  throw Error(Errc::kUnavailable, what + ": " + std::strerror(errno), {"launch", -1, -1});
}

Time now() { return std::chrono::steady_clock::now(); }

std::string read_secret(const std::string& file) {
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::kBadConfig, "--secret-file " + file + ": " + why, {"launch", -1, -1});
  };
  // To open a pipe that nobody writes to would block.
  const Fd in(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!in) refuse(std::strerror(errno));
  std::string bytes(kSecretBytes, '\0');
  ssize_t got = 0;
  for (std::size_t have = 0; have < kSecretBytes; have += static_cast<std::size_t>(got)) {
    got = ::read(in.get(), bytes.data() + have, kSecretBytes - have);
    if (got < 0 && errno == EAGAIN) {  // the writer of a pipe is slow
      pollfd readable{in.get(), POLLIN, 0};
      if (::poll(&readable, 1, kSecretTimeoutMs) == 0) refuse("no bytes come from it");
      got = ::read(in.get(), bytes.data() + have, kSecretBytes - have);
    }
    if (got < 0) refuse(std::strerror(errno));
    if (got == 0) refuse("expected at least " + std::to_string(kSecretBytes) + " bytes");
  }
  return bytes;
}

// A sealed memory file: it has no name, ranks cannot change it, and it does not appear in arguments
// or environment.
Fd hold_secret(const std::string& bytes) {
  Fd memory(::memfd_create("weft-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory ||
      ::write(memory.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    unavailable("cannot create a memory file for the secret");
  ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  return memory;
}

Policy policy_of(const LaunchOptions& options, const Job& job) {
  return {.on_hang = job.on_hang,
          .max_restarts = options.max_restarts,
          .max_replacements = job.max_replacements,
          .min_ranks = job.min_ranks,
          .max_ranks = job.max_ranks,
          .survivor_grace = options.survivor_grace,
          .shutdown_timeout = options.shutdown_timeout};
}

}  // namespace

Supervisor::Supervisor(const LaunchOptions& options, std::function<int(int)> run)
    : options_(options),
      run_(std::move(run)),
      job_(read_options(options)),
      positions_(
          observe::RankPage::make(job_.local_world, job_.rank(0), job_.world(), job_.max_ranks)),
      notices_(options.going.notice_command, options.going.notice_interval),
      discovery_(options.scaling.discovery_script, options.scaling.discovery_interval),
      spares_(
          job_.spares, [this] { return start_spare(); },
          [this](const std::string& text) { note(text); }),
      servers_(serving()) {
  positions_.header().launcher = ::getpid();
  require_descriptors(kDescriptors +
                      kDescriptorsPerRank * (job_.local_world + job_.spares + job_.servers));
  policy_ = policy_of(options, job_);
  if (job_.node_rank == 0 && !job_.plan)
    listener_ = listen_for_store(job_.master_addr, job_.master_port, &job_.master_port);
  if (!options.secret_file.empty()) {
    secret_ = hold_secret(read_secret(options.secret_file));
  } else if (job_.nodes == 1) {
    secret_ = hold_secret(random_bytes(kSecretBytes));
  } else {
    note("no --secret-file: ranks of different nodes cannot authenticate each other");
  }
  if (!options.http.empty() && job_.node_rank == 0)
    page_ = std::make_unique<LivePage>(options.http);
  situation_.first_rank = job_.rank(0);
  situation_.other_nodes = job_.nodes > 1;
  if (policy_.max_ranks > 0) situation_.wanted = job_.local_world;
  make_folder();
  make_servers_folder();
  control_.emplace();
  signals_.emplace(handled_signals());
  const int threads = threads_per_rank(job_.local_world);
  if (threads > 0 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    note("OMP_NUM_THREADS is not set: " + std::to_string(threads) + " for each of " +
         std::to_string(job_.local_world) + " ranks");
  }
}

Supervisor::~Supervisor() {
  spares_.clear();
  ranks_.clear();
  if (store_process_) servers_.end();
  following_.reset();
  store_process_.reset();
  std::error_code ignored;
  if (!keep_folder_) std::filesystem::remove_all(folder_, ignored);
  if (!job_.servers_folder.empty()) std::filesystem::remove_all(job_.servers_folder, ignored);
}

int Supervisor::run() {
  const int code = job_.plan ? run_by_plan() : run_attempts();
  requeue();
  answer_stops(code);
  return code;
}

int Supervisor::run_attempts() {
  start_attempt();
  for (;;) {
    const Act last = watch();
    servers_.end();
    const bool again = last != Act::kFinish;
    if (!again) say_how_it_went();
    const Situation whole = situation_of_job();
    const auto failed = first_failure(whole);
    const bool by_store =
        situation_.store_lost && (failed ? whole.ranks[static_cast<std::size_t>(*failed)]->told
                                         : whole.stop_sent.has_value());
    const bool by_servers =
        situation_.servers_lost && failed && whole.ranks[static_cast<std::size_t>(*failed)]->told;
    if (failed && !by_store && !by_servers) write_all(STDERR_FILENO, report(whole));
    if (!again && by_store) return end_of_store();
    if (!again && by_servers) return end_of_servers();
    if (!again && whole.hang) return exit_code(Errc::kTimeout);
    if (!again) return failed ? whole.ranks[static_cast<std::size_t>(*failed)]->status.code() : 0;
    begin_again(last);
    if (!start_again()) {
      say_how_it_went();
      return stop_code();
    }
  }
}

// As start_attempt(), for about a minute while the machine has no process or memory for all ranks.
// False: the job was told to stop meanwhile.
bool Supervisor::start_again() {
  for (int failures = 0;;) {
    try {
      start_attempt();
      return true;
    } catch (const std::exception& error) {  // also one of the file system: a full disk
      if (code_of(error) != Errc::kUnavailable || ++failures >= kMostFailedStarts) throw;
      ranks_.clear();
      servers_.end();
      if (failures == 1)
        note("the ranks cannot be started now: " + describe(error) +
             "; this is tried again, and said once");
    }
    const Time again = now() + start_pause(failures);
    for (Time at = now(); at < again; at = now()) {
      std::vector<pollfd> watched = {{signals_->fd(), POLLIN, 0}};
      control_->watch(watched);
      ::poll(watched.data(), watched.size(), Deadline::at(again).left_ms());
      on_signal();
      control_->serve([this](const std::string& request) { return answer(request); });
      if (situation_.stop_signals > 0 || situation_.asked) return false;
    }
  }
}

void Supervisor::begin_again(Act how) {
  const bool meets = !situation_.meeting.empty();
  resume_run_ = how == Act::kRestore ? run_folder_ : "";
  const std::string why =
      situation_.store_lost
          ? "the process that holds the store has ended: " + store_process_->poll()->describe() +
                ": starting all ranks again"
          : std::string(meets ? "a rank is lost before all ranks have met" : "all ranks are lost") +
                ": starting them again";
  situation_ = next_attempt(situation_, how);
  if (how == Act::kRestore) {
    note(why + (resume_run_.empty() ? "" : ", from the newest checkpoint") +
         count_of_replacements());
  } else {
    note("restarting all ranks (restart " + std::to_string(situation_.restarts) + " of " +
         std::to_string(policy_.max_restarts) + ")");
  }
}

// The store process has ended first. It prints its own error.
int Supervisor::end_of_store() {
  const auto status = store_process_->poll();
  note("the process that holds the store ended first: " + status->describe());
  return status->ok() ? exit_code(Errc::kInternal) : status->code();
}

void Supervisor::start_attempt() {
  attempt_began_ = now();
  spares_.clear();
  ranks_.clear();
  store_process_.reset();
  out_of_memory_before_ = out_of_memory_kills();
  StoreProcess::Options keeping;
  keeping.listener = listener_.get();
  keeping.host = job_.master_addr;
  keeping.port = job_.master_port;
  keeping.lost_key = comm::lost_rank_key(job_.run_id, situation_.restarts);
  keeping.gone_key = comm::gone_ranks_key(job_.run_id, situation_.restarts);
  gone_.clear();
  has_state_ = false;
  if (!keep_folder_) keeping.folder = folder_;
  store_process_ = std::make_unique<StoreProcess>(keeping);
  run_servers();
  const int count = situation_.wanted > 0 ? situation_.wanted : job_.local_world;
  set_places(job_, options_, count);
  positions_.set_ranks(count);
  situation_.ranks.assign(static_cast<std::size_t>(count), std::nullopt);
  for (int local = 0; local < count; ++local) ranks_.push_back(start_rank(local));
}

Act Supervisor::watch() {
  for (;;) {
    const Decision decision = decide(situation_, policy_, now());
    const bool replaces =
        decision.act == Act::kReplace || (decision.act == Act::kWait && decision.rank >= 0);
    if (!replaces) tell_gone();
    switch (decision.act) {
      case Act::kWait: wait_for_events(decision.until); break;
      case Act::kReplace: replace(decision.rank); break;
      case Act::kLetGo: let_go(decision.rank); break;
      case Act::kGrow: grow(decision.rank); break;
      case Act::kAnnounce: announce(decision.ranks); break;
      case Act::kDismiss: dismiss(decision.rank); break;
      case Act::kTerminate:
        situation_.stop_sent = now();
        note_stopped_ranks();
        send(SIGTERM);
        break;
      case Act::kKill:
        note("killing the remaining ranks: " + decision.reason);
        if (!situation_.stop_sent) situation_.stop_sent = now();
        situation_.kill_sent = true;
        send(SIGKILL);
        break;
      case Act::kRestart:
      case Act::kRestore:
      case Act::kFinish: return decision.act;
    }
  }
}

void Supervisor::wait_for_events(std::optional<Time> until) {
  std::vector<pollfd> watched = {{signals_->fd(), POLLIN, 0}};
  control_->watch(watched);
  if (!store_process_->poll()) watched.push_back({store_process_->pidfd(), POLLIN, 0});
  if (following_) {
    watched.push_back({following_->store->pidfd(), POLLIN, 0});
    watched.push_back({following_->agent->link_fd(), POLLIN, 0});
    if (follow_at_) until = until ? std::min(*until, *follow_at_) : *follow_at_;
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (situation_.ranks[i]) continue;
    watched.push_back({ranks_[i].process.pidfd(), POLLIN, 0});
    if (!ranks_[i].link.ended()) watched.push_back({ranks_[i].link.fd(), POLLIN, 0});
    for (const LineRelay* stream : {&ranks_[i].out, &ranks_[i].err}) {
      if (stream->fd() >= 0) watched.push_back({stream->fd(), POLLIN, 0});
    }
  }
  spares_.watch(watched);
  servers_.watch(watched);
  notices_.watch(watched);
  discovery_.watch(watched);
  watch_for_hangs();
  Time look = now() + HangWatch::kPeriod;
  for (const auto due : {spares_.next(), servers_.next(now()), notices_.next(), discovery_.next()})
    look = due ? std::min(look, *due) : look;
  until = until ? std::min(*until, look) : look;
  ::poll(watched.data(), watched.size(), until ? Deadline::at(*until).left_ms() : -1);
  on_signal();
  for (Rank& rank : ranks_) {
    rank.out.pump();
    rank.err.pump();
  }
  collect_ends();
  look_after_servers();
  if (following_) follow_at_ = follow();
  look_after_spares();
  look_at_notices();
  autoscale();
  control_->serve([this](const std::string& request) { return answer(request); });
}

void Supervisor::on_signal() {
  while (const auto signal = signals_->next()) {
    const int number = *signal;
    if (number == SIGUSR1 && !passes_on(SIGUSR1)) {
      ask_to_leave("SIGUSR1");
      continue;
    }
    const bool only_forwarded = number == SIGUSR1 || number == SIGUSR2;
    // Ranks that were asked to end save a checkpoint, and the same signal again would kill them.
    if (only_forwarded || !situation_.asked || situation_.stop_signals > 0) send(number);
    if (only_forwarded) continue;
    note_departure(signal_name(number), false, {});
    if (stop_signal_ == 0) stop_signal_ = number;
    ++situation_.stop_signals;
    if (!situation_.stop_sent) situation_.stop_sent = now();
  }
}

void Supervisor::collect_ends() {
  const Time seen = now();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (situation_.ranks[i]) continue;
    hear(static_cast<int>(i));
    const pid_t group = ranks_[i].process.pid();
    const auto status = ranks_[i].process.poll();
    if (!status) continue;
    hear(static_cast<int>(i));  // what it told before its end
    store_process_->forget(group);
    const bool leaves = situation_.leaving.contains(static_cast<int>(i));
    const int rank = job_.rank(static_cast<int>(i));
    if (!status->ok() && leaves) {
      note("rank " + std::to_string(rank) +
           " had left the job when it ended: " + status->describe());
    } else if (!status->ok()) {
      store_process_->tell_lost(rank);
    }
    const bool joining = situation_.joining.contains(static_cast<int>(i));
    const bool unmet =
        situation_.other_nodes && !job_.plan && situation_.meeting.erase(static_cast<int>(i)) > 0;
    ranks_[i].out.finish();
    ranks_[i].err.finish();
    situation_.ranks[i] = RankEnd{.status = leaves ? ExitStatus{} : *status,
                                  .when = seen,
                                  .cause = read_error_file(error_file_of(static_cast<int>(i))),
                                  .told = situation_.stop_sent.has_value(),
                                  .joining = joining,
                                  .unmet = unmet};
    note_end_of_newcomer(static_cast<int>(i));
  }
  if (following_ && store_process_->poll()) return renew_guard();
  if (store_process_->poll()) situation_.store_lost = true;
}

// Before they are continued, so that a rank that SIGSTOP had stopped can be named.
void Supervisor::note_stopped_ranks() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!situation_.ranks[i] && ranks_[i].process.is_stopped())
      situation_.stopped.insert(static_cast<int>(i));
  }
}

void Supervisor::send(int signal) {
  for (Rank& rank : ranks_) {
    // A rank that stops already would be killed by a second signal.
    if (signal == SIGTERM && rank.stops) continue;
    rank.process.signal(signal);
    // A stopped process reacts only to SIGKILL until it is continued.
    if (signal != SIGKILL) rank.process.signal(SIGCONT);
  }
}

void Supervisor::note(const std::string& text) const {
  write_all(STDERR_FILENO, "weft: " + text + "\n");
}

Situation Supervisor::situation_of_job() const {
  if (job_.nodes == 1) return situation_;
  NodeReportsOptions options;
  options.store_host = job_.master_addr;
  options.store_port = job_.master_port;
  options.prefix = "weft/launchers/" + job_.run_id + "/" + std::to_string(situation_.restarts);
  options.nodes = job_.nodes;
  options.node = job_.node_rank;
  options.wait = policy_.survivor_grace + std::chrono::seconds(5);
  return exchange_reports(situation_, options);
}

std::string Supervisor::report(const Situation& whole) const {
  Failure failure;
  failure.situation = whole;
  failure.first_here = job_.rank(0) - whole.first_rank;
  failure.count_here = job_.local_world;
  failure.stop_signal = stop_signal_;
  if (departure_ && situation_.asked) failure.asked = departure_->why;
  failure.out_of_memory = out_of_memory_kills() > out_of_memory_before_;
  const auto blamed = blame(whole);
  const int local = blamed->rank - failure.first_here;
  if (blamed->how == Blame::How::kFailed && local >= 0 && local < job_.local_world) {
    const auto at = static_cast<std::size_t>(local);
    // If the cause is known, lines that were already shown are not repeated.
    const bool was_shown = job_.shown[at] && (job_.redirects[at] & STDERR_FILENO) == 0;
    if (!was_shown || !situation_.ranks[at]->cause) failure.last_lines = ranks_[at].err.tail();
    if (logs_errors(local)) failure.log = (folder_of(local) / "stderr.log").string();
  }
  return failure_report(failure);
}

}  // namespace weft::launch::internal
