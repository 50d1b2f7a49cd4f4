#include "weft/store/etcd/internal/change_feed.h"

#include <algorithm>
#include <set>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::store::internal {
namespace {

using namespace std::chrono_literals;

// Time before the next try after a stream that brought nothing.
constexpr auto kTryAgain = 100ms;
// Most different reasons that are logged.
constexpr std::size_t kMaxReasons = 16;

}  // namespace

std::string range_end(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');  // to the last key
  ++prefix.back();
  return prefix;
}

ChangeFeed::ChangeFeed(const EtcdUrl& url, std::string prefix)
    : prefix_(std::move(prefix)),
      api_(url),
      thread_([this](const std::stop_token& stop) { follow(stop); }) {}

bool ChangeFeed::wait(const std::string& prefix, Revision since, Deadline deadline,
                      const std::function<bool()>& is_gone) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (last_ != 0 && changes_.any_since(prefix, since)) return true;
    if (deadline.passed() || is_gone()) return false;
    changed_.wait_until(lock, std::min(deadline.when(), Deadline::in(500ms).when()));
  }
}

void ChangeFeed::follow(const std::stop_token& stop) {
  Revision last = 0;
  std::set<std::string> reasons;  // that were logged
  while (!stop.stop_requested()) {
    nlohmann::json request;
    request["key"] = to_base64(prefix_);
    request["range_end"] = to_base64(range_end(prefix_));
    if (last != 0) request["start_revision"] = std::to_string(last + 1);
    bool has_taken = false;
    std::string reason;
    try {
      reason = api_.stream("/v3/watch", {{"create_request", request}},
                           [&](const nlohmann::json& message) {
                             if (stop.stop_requested() || !take(message)) return false;
                             has_taken = true;
                             return true;
                           });
    } catch (const Error& error) {
      reason = error.message();
    }
    std::unique_lock lock(mutex_);
    last = last_;
    if (has_taken || stop.stop_requested()) continue;
    if (reasons.size() < kMaxReasons && reasons.insert(reason).second)
      log_warn("the watch of etcd ends: " + reason);
    pause_.wait_for(lock, stop, kTryAgain, [] { return false; });
  }
}

// One message of the stream. Returns false to end it.
bool ChangeFeed::take(const nlohmann::json& message) {
  const nlohmann::json result = message.value("result", nlohmann::json::object());
  const std::lock_guard lock(mutex_);
  if (result.value("canceled", false)) {  // changes after last_ are no longer kept
    last_ = 0;
    return false;
  }
  if (last_ == 0) {
    last_ = number_in(result.value("header", nlohmann::json::object()), "revision");
    changes_.restart(last_);
  }
  for (const auto& event : result.value("events", nlohmann::json::array())) {
    const auto kv = event.value("kv", nlohmann::json::object());
    const Revision revision = number_in(kv, "mod_revision");
    const std::string key = from_base64(kv.value("key", ""));
    changes_.add(revision, key.substr(std::min(key.size(), prefix_.size())));
    last_ = std::max(last_, revision);
  }
  changed_.notify_all();
  return true;
}

}  // namespace weft::store::internal
