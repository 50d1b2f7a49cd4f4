// How the supervisor answers a request that the job goes (departure.h).
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "weft/base/error.h"
#include "weft/launch/internal/supervisor.h"

namespace weft::launch::internal {
namespace {

std::chrono::milliseconds grace_of(const LaunchOptions& options) {
  return options.going.grace.value_or(options.shutdown_timeout);
}

constexpr auto kRequeueLimit = std::chrono::seconds(30);

}  // namespace

// SIGUSR1 is a request to go, unless it is to be passed on to the program.
std::vector<int> Supervisor::handled_signals() const {
  std::vector<int> signals = job_.signals;
  if (!passes_on(SIGUSR1)) signals.push_back(SIGUSR1);
  return signals;
}

bool Supervisor::passes_on(int signal) const {
  return std::find(job_.signals.begin(), job_.signals.end(), signal) != job_.signals.end();
}

// The first request counts. `grace`: nullopt for that of the options.
void Supervisor::note_departure(const std::string& why, bool requeues,
                                std::optional<std::chrono::milliseconds> grace) {
  if (job_goes() && !departure_->by_program) return;
  leaving_ = false;
  departure_ = Departure{why, std::chrono::steady_clock::now(), grace.value_or(grace_of(options_)),
                         requeues};
  situation_.grace_end = end_of_grace(*departure_);
}

// A rank stops, and all others with it. `cause`: "signal", or "should_stop".
void Supervisor::note_stop_of(int local, const std::string& cause) {
  const std::string rank = "rank " + std::to_string(job_.rank(local));
  ranks_[static_cast<std::size_t>(local)].stops = true;
  if (cause == "signal") return note_departure("a signal to " + rank, false, {});
  if (departure_) return;
  departure_ = Departure{.why = rank + " asked to stop",
                         .since = std::chrono::steady_clock::now(),
                         .grace = grace_of(options_),
                         .by_program = true};
}

// Lets the ranks save a checkpoint and end.
void Supervisor::ask_to_go(const std::string& why, bool requeues,
                           std::optional<std::chrono::milliseconds> grace) {
  if (job_goes() && !departure_->by_program) return;
  note(why + ": the ranks shall save a checkpoint and end");
  note_departure(why, requeues, grace);
  situation_.asked = true;
  if (!situation_.stop_sent) situation_.stop_sent = departure_->since;
  send(SIGTERM);
}

// A request that concerns this machine alone. Of nodes that meet, the others go on without it.
void Supervisor::ask_to_leave(const std::string& why) {
  const bool is_elastic = policy_.max_replacements > 0 || policy_.min_ranks > 0;
  const bool by_plan = following_ && following_->orders.node >= 0 && is_elastic;
  if (!by_plan || options_.going.requeue) return ask_to_go(why, true, {});
  if (departure_ && !departure_->by_program) return;
  note(why + ": this node leaves, if the others can go on without it; else the job ends");
  note_departure(why, true, {});
  leaving_ = true;
}

// For the agents: what this launcher was asked.
void Supervisor::report_requests() {
  NodeReport& report = following_->report;
  if (!departure_ || departure_->by_program || following_->orders.is_over()) return;
  StopRequest& request = leaving_ ? report.leave : report.stop;
  if (!leaving_) report.leave = {};
  if (!request.why.empty()) return;
  const std::string node = std::to_string(following_->orders.node);
  const bool is_signal = departure_->why.starts_with("SIG");
  request = {departure_->why + (is_signal ? " to the launcher of node " : ", on node ") + node,
             stop_code(), departure_->grace.count()};
}

// The plan says that the job ends because a launcher was asked to.
void Supervisor::heed_stop() {
  const StopRequest& stop = following_->orders.plan.stop;
  leaving_ = false;
  situation_.asked = true;
  if (departure_ && !departure_->by_program) return;
  note_departure(stop.why, false, std::chrono::milliseconds(stop.grace_ms));
  departure_->by_plan = true;
}

// Exit code of a job that was told to stop, by a signal or otherwise.
int Supervisor::stop_code() const { return 128 + (stop_signal_ != 0 ? stop_signal_ : SIGTERM); }

int Supervisor::end_of_leaving() {
  const std::string text = "this node has left the job, which goes on without it";
  note(text + " (" + (departure_ ? departure_->why : "") + ")");
  stopped_ = "ok " + text;
  return 128 + SIGTERM;
}

// "stop", or "stop SECONDS". The answer comes when the job has ended (answer_stops()).
std::optional<std::string> Supervisor::answer_stop(const std::string& request) {
  constexpr std::size_t kVerb = 4;
  std::optional<std::chrono::milliseconds> grace;
  if (request.size() > kVerb) {
    double seconds = 0;
    const char* const end = request.data() + request.size();
    const auto [at, error] = std::from_chars(request.data() + kVerb + 1, end, seconds);
    constexpr double kMost = 7 * 86400;
    if (error != std::errc() || at != end || !(seconds > 0) || seconds > kMost)
      return "this launcher does not know the request \"" + request + "\"";
    grace = std::chrono::milliseconds(std::llround(seconds * 1e3));
  }
  if (!stopped_) ask_to_go("weft stop", false, grace);
  return stopped_;
}

void Supervisor::look_at_notices() {
  const auto result = notices_.look(std::chrono::steady_clock::now());
  if (!result) return;
  if (result->status.ok()) return ask_to_leave("a notice that this machine goes");
  const bool broken = result->timed_out || result->status.signaled || result->status.value >= 126;
  if (!broken || notices_broken_) return;
  notices_broken_ = true;
  note("--notice-command: " + result->describe() + "; it is tried again, and this is said once");
}

// After the last rank has ended, before the report.
void Supervisor::say_how_it_went() {
  if (!departure_) return;
  Time ended{};
  for (const auto& end : situation_.ranks) ended = end ? std::max(ended, end->when) : ended;
  const bool heeded =
      std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.stops; });
  const std::string line = line_of({.asked = *departure_,
                                    .trained = situation_.trained || !newest_checkpoint_.empty(),
                                    .killed = situation_.kill_sent,
                                    .newest = newest_checkpoint_,
                                    .saved = saved_,
                                    .ended = ended,
                                    .heeded = heeded});
  if (!line.empty()) note(line);
  stopped_ = situation_.kill_sent ? line : "ok" + (line.empty() ? "" : " " + line);
}

void Supervisor::answer_stops(int code) {
  if (!stopped_)
    stopped_ = "ok the job has ended by itself, with exit code " + std::to_string(code);
  control_->serve([this](const std::string& request) -> std::optional<std::string> {
    return request.starts_with("stop") ? stopped_ : "the job has ended";
  });
}

void Supervisor::requeue() {
  if (!options_.going.requeue || !departure_ || !departure_->requeues) return;
  // Of several nodes, one requeues the job: node 0, or the one whose request ended it.
  const int node = following_ ? following_->orders.plan.stop_node : 0;
  if (job_.node_rank != node) return;
  const char* const job = std::getenv("SLURM_JOB_ID");
  const std::string command = std::string("scontrol requeue ") + (job != nullptr ? job : "");
  try {
    ProcessOptions options;
    options.argv = {"scontrol", "requeue", job != nullptr ? job : ""};
    Process process(options);
    const auto status = process.wait(Deadline::in(kRequeueLimit));
    note(command + ": " +
         (!status        ? "no answer within 30 s; the job is not requeued"
          : status->ok() ? "the job is requeued"
                         : status->describe() + "; the job is not requeued"));
  } catch (const Error& error) {
    note(command + ": " + error.message() + "; the job is not requeued");
  }
}

}  // namespace weft::launch::internal
