#include "weft/launch/internal/hang_guard.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text/words.h"
#include "weft/launch/internal/hang_report.h"
#include "weft/observe/position/position.h"

namespace weft::launch::internal {
void HangGuard::look() {
  const Time look_at = std::chrono::steady_clock::now();
  if (look_at - looked_ < HangWatch::kPeriod) return;
  looked_ = look_at;
  // Ranks that wait until their output is read do not hang. The next look notices the pause.
  if (node_.out->holds_ranks() || node_.err->holds_ranks()) return;
  auto views = observe::views_of(node_.positions);
  views.resize(std::min(views.size(), node_.ranks.size()));  // no rank runs here yet
  for (std::size_t i = 0; i < views.size(); ++i) {
    views[i].rank = node_.job.rank(static_cast<int>(i));
    if (node_.situation.ranks[i]) {
      views[i] = {.rank = views[i].rank, .ended = true};
    } else if (views[i].pid == 0) {  // it has not started weft, but may be stopped
      views[i].pid = views[i].standing.thread = node_.ranks[i].process.pid();
    }
    // It may load its program and its data for long.
    const bool loads = node_.situation.newcomers.contains(static_cast<int>(i));
    auto& activity = views[i].standing.activity;
    if (loads && activity == observe::Activity::kUnknown) activity = observe::Activity::kInit;
  }
  const Nanos clock(observe::monotonic_ns());
  const auto seen = watch_.look(clock, views, observe::read_thread);
  if (node_.situation.stop_sent) return;
  replace_slow_rank();
  for (const Hang& hang : seen.resumed) node_.note(resumed_line_of(hang));
  report(seen.hangs, views, clock);
  for (const Hang& hang : seen.hangs) {
    const HangAct act = act_on(hang, node_.policy);
    if (act == HangAct::kWarn) continue;
    RankProcess& rank = node_.ranks[static_cast<std::size_t>(hang.local)];
    if (std::exchange(rank.hangs, true)) continue;
    const std::string text = line_of(hang, views[static_cast<std::size_t>(hang.local)]);
    node_.note(text + ": killing it");
    if (act == HangAct::kEnd) node_.situation.hang = {hang.local, text};
    rank.process.signal(SIGKILL);
  }
}

// A rank that asks for it, because it is slow. One at a time: the others must have the state.
void HangGuard::replace_slow_rank() {
  if (!node_.situation.newcomers.empty()) return;
  for (std::size_t i = 0; i < node_.ranks.size(); ++i) {
    auto& wish = node_.positions.record(static_cast<int>(i)).wants_replacement;
    if (node_.situation.ranks[i] || wish.exchange(0) == 0) continue;
    const bool may = node_.situation.job.replacements < node_.policy.max_replacements;
    node_.note("rank " + std::to_string(node_.job.rank(static_cast<int>(i))) +
               " is slow and asks to be replaced: " +
               (may ? "killing it" : "no replacements are left (--max-replacements)"));
    if (may) return node_.ranks[i].process.signal(SIGKILL);
  }
}

void HangGuard::report(std::vector<Hang> hangs, std::vector<observe::RankView>& views,
                       Nanos clock) {
  std::erase_if(hangs, [](const Hang& hang) { return !hang.is_new; });
  static const observe::RankView elsewhere;
  bool with_table = false;
  for (const Hang& hang : hangs) {
    node_.note(
        line_of(hang, hang.local >= 0 ? views[static_cast<std::size_t>(hang.local)] : elsewhere));
    with_table = with_table || needs_table(hang);
  }
  if (!with_table) return;
  for (observe::RankView& view : views) observe::read_thread(view);
  const HangFiles files = files_of(hangs, views, clock);
  node_.err->print(files.text.substr(files.text.find("\n\n") + 2));
  const std::string folder = node_.positions.run_folder();
  if (folder.empty()) return;
  const std::string file =
      folder + "/" + local_time(std::chrono::system_clock::now(), "hang-%Y-%m-%d-%H%M%S");
  const std::string refusal = writer_.start([&] {
    write_file_atomic(file + ".txt", files.text);
    write_file_atomic(file + ".json", files.json);
  });
  node_.note("the positions of the ranks are " +
             (refusal.empty() ? "in " + file + ".txt and .json" : "not written: " + refusal));
}

std::string HangWriter::start(std::function<void()> write) {
  if (running_ && !running_->poll())
    return "process " + std::to_string(running_->pid()) + " still writes those before";
  ProcessOptions options;
  options.call = [write = std::move(write)] {
    write();
    return 0;
  };
  try {
    running_.emplace(options);
  } catch (const Error& error) {  // no process now
    return error.message();
  }
  return "";
}

}  // namespace weft::launch::internal
