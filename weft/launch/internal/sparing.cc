// How the supervisor starts warm spares and makes them ranks.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "weft/agent/spare.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/internal/supervisor.h"

namespace weft::launch::internal {
namespace {

// Programs that do not say when they train are taken to train after this time.
constexpr auto kStartUp = std::chrono::seconds(5);

LineRelay relay_of_spare(Fd pipe) {
  LineRelay::Options options;
  options.console = STDERR_FILENO;
  options.prefix = "[spare] ";
  return LineRelay(std::move(pipe), std::move(options));
}

}  // namespace

// The environment of a rank, without its number.
Spare Supervisor::start_spare() {
  const Fd secret = reopen(secret_), nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessOptions process = program_of(-1);
  const int live = page_ ? page_->fd() : -1;
  auto [link, its_link] = agent::Link::make();
  process.environment = rank_environment(
      options_, job_, 0,
      {situation_.restarts, "", secret.get(), -1, its_link.fd(), true, run_folder_, true, -1});
  for (const char* unknown : {"RANK=", "LOCAL_RANK=", "ROLE_RANK="})
    process.environment.emplace_back(unknown);  // the last entry of a name counts
  process.environment.push_back(std::string(agent::kSpareVariable) + "=1");
  process.inherit = {its_link.fd(), positions_.fd()};
  if (secret) process.inherit.push_back(secret.get());
  if (live >= 0) process.inherit.push_back(live);
  process.stdin_fd = nothing.get();
  auto out = make_pipe("a spare's output"), err = make_pipe("a spare's output");
  process.stdout_fd = out[1].get();
  process.stderr_fd = err[1].get();
  Process started(process);
  return {.process = std::move(started),
          .link = std::move(link),
          .out = relay_of_spare(std::move(out[0])),
          .err = relay_of_spare(std::move(err[0])),
          .secret_fd = secret.get(),
          .live_fd = live,
          .link_fd = its_link.fd()};
}

// nullopt: no spare is ready.
std::optional<Supervisor::Rank> Supervisor::become_rank(int local) {
  for (auto spare = spares_.take(); spare; spare = spares_.take()) {
    positions_.clear(local);
    positions_.header().generation.fetch_add(1);
    const auto environment =
        rank_environment(options_, job_, local,
                         {situation_.restarts, error_file_of(local).string(), spare->secret_fd,
                          job_.rank(local) == 0 ? spare->live_fd : -1, spare->link_fd, true,
                          run_folder_, !logs_errors(local), positions_.fd(),
                          following_ ? following_->store->socket() : "", has_state_});
    if (!spare->link.tell("become", agent::to_text(environment))) continue;  // it has just ended
    return Rank{std::move(spare->process), std::move(spare->link),
                relay(local, STDOUT_FILENO, spare->out.release(), true),
                relay(local, STDERR_FILENO, spare->err.release(), true)};
  }
  return std::nullopt;
}

// True if the job trains, and no rank joins or ends.
bool Supervisor::is_calm() const {
  if (following_ && !following_->orders.plan.formed) return false;
  const bool changes = !situation_.joining.empty() || !situation_.growing.empty() ||
                       !situation_.waiting.empty() || !situation_.leaving.empty();
  const bool all_run =
      std::all_of(situation_.ranks.begin(), situation_.ranks.end(),
                  [](const auto& end) { return !end || end->let_go || end->left; });
  const bool begun =
      situation_.trained || std::chrono::steady_clock::now() - attempt_began_ >= kStartUp;
  return begun && !changes && all_run && !situation_.store_lost;
}

void Supervisor::look_after_spares() {
  const bool is_ending =
      situation_.stop_sent || leaving_ || (following_ && following_->orders.is_over()) ||
      std::any_of(situation_.ranks.begin(), situation_.ranks.end(),
                  [](const auto& end) { return end && end->status.ok() && !end->left; });
  if (is_ending) spares_.clear();
  spares_.look(std::chrono::steady_clock::now(), is_calm() && !is_ending);
}

}  // namespace weft::launch::internal
