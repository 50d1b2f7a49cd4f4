#include "weft/launch/internal/hang_report.h"

#include <nlohmann/json.hpp>

#include "weft/base/json/json.h"
#include "weft/base/text/numbers.h"

namespace weft::launch::internal {
namespace {

using How = Hang::How;
using Json = nlohmann::ordered_json;

std::string seconds(Nanos time) {
  return formatted("%.1f s", std::chrono::duration<double>(time).count());
}

// "in forward of step 7".
std::string place_of(const observe::Standing& standing) {
  const std::string step =
      standing.step > 0 ? "step " + std::to_string(standing.step) : std::string("its program");
  return standing.activity == observe::Activity::kUnknown
             ? "in " + step
             : std::string("in ") + to_string(standing.activity) + " of " + step;
}

std::string waiting(const Hang& hang) {
  if (hang.waiting < 0) return "";
  return "; rank " + std::to_string(hang.waiting) + " waits for it in " + to_string(hang.operation);
}

const char* name_of(How how) {
  switch (how) {
    case How::kHeld: return "held";
    case How::kAsleep: return "asleep";
    case How::kBusy: return "busy";
    case How::kSlow: return "slow";
    case How::kElsewhere: return "elsewhere";
    case How::kCycle: return "cycle";
  }
  return "";
}

}  // namespace

std::string line_of(const Hang& hang, const observe::RankView& view) {
  const std::string rank = "rank " + std::to_string(hang.rank), time = seconds(hang.lasts),
                    process = " (process " + std::to_string(view.pid) + ")",
                    state = view.thread ? to_string(*view.thread) : "";
  switch (hang.how) {
    case How::kHeld:
      return rank + " hangs: it is " + state + process + " for " + time + waiting(hang);
    case How::kAsleep:
      return rank + " hangs " + place_of(view.standing) + ": it " + state + process + " for " +
             time + waiting(hang);
    case How::kBusy:
      return rank + " hangs " + place_of(view.standing) + ": it computes without an end" + process +
             " for " + time + waiting(hang);
    case How::kSlow:
      return rank + " is slow " + place_of(view.standing) + process + ": " + time + waiting(hang);
    case How::kElsewhere:
      return "rank " + std::to_string(hang.waiting) + " has waited for " + rank +
             ", which is on another node, for " + time + " in " + to_string(hang.operation) +
             "; see the output of that node's launcher";
    case How::kCycle:
      return rank + " and others wait for each other for " + time + "; rank " +
             std::to_string(hang.waiting) + " waits in " + to_string(hang.operation);
  }
  return "";
}

std::string resumed_line_of(const Hang& hang) {
  return "rank " + std::to_string(hang.rank) + " goes on after " + seconds(hang.lasts);
}

HangFiles files_of(const std::vector<Hang>& hangs, const std::vector<observe::RankView>& views,
                   Nanos now) {
  HangFiles files;
  Json all = Json::array();
  for (const Hang& hang : hangs) {
    static const observe::RankView none;
    const auto& view = hang.local >= 0 ? views[static_cast<std::size_t>(hang.local)] : none;
    const std::string line = line_of(hang, view);
    files.text += line + "\n";
    all.push_back({{"rank", hang.rank},
                   {"how", name_of(hang.how)},
                   {"waiting", hang.waiting >= 0 ? Json(hang.waiting) : Json()},
                   {"seconds", std::chrono::duration<double>(hang.lasts).count()},
                   {"message", line}});
  }
  files.text += "\n" + observe::table_of(views, now.count());
  files.json =
      json_line({{"hangs", all}, {"positions", observe::json_of(views, now.count())}}) + "\n";
  return files;
}

}  // namespace weft::launch::internal
