// The messages of a ring of hosts that are threads of a test.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/linear/hogwild/token_ring.h"

namespace weft::linear {

class ThreadRing final : public RingMessages {
 public:
  class Shared {
   public:
    explicit Shared(int hosts) : boxes_(static_cast<std::size_t>(hosts)) {}
    void put(std::size_t host, Kind kind, std::span<const float> values) {
      const std::lock_guard lock(mutex_);
      boxes_[host][kind].emplace_back(values.begin(), values.end());
    }
    std::optional<std::vector<float>> take(std::size_t host, Kind kind) {
      const std::lock_guard lock(mutex_);
      auto& box = boxes_[host][kind];
      if (box.empty()) return std::nullopt;
      auto values = std::move(box.front());
      box.pop_front();
      return values;
    }
    bool empty() {
      const std::lock_guard lock(mutex_);
      for (const auto& host : boxes_) {
        for (const auto& box : host) {
          if (!box.empty()) return false;
        }
      }
      return true;
    }
    std::size_t hosts() const { return boxes_.size(); }

   private:
    std::mutex mutex_;
    std::vector<std::array<std::deque<std::vector<float>>, 3>> boxes_;
  };

  ThreadRing(Shared& shared, int host) : shared_(shared), host_(static_cast<std::size_t>(host)) {}
  void send(Kind kind, std::span<const float> values) override {
    const std::size_t hosts = shared_.hosts(), step = kind == kAnswer ? hosts - 1 : 1;
    shared_.put((host_ + step) % hosts, kind, values);
  }
  std::optional<std::span<const float>> receive(Kind kind) override {
    auto values = shared_.take(host_, kind);
    if (!values) return std::nullopt;
    last_[kind] = std::move(*values);
    return last_[kind];
  }
  void wait() override {
    if (limit_.passed()) throw Error(Errc::kTimeout, "no message");
    std::this_thread::yield();
  }

 private:
  Shared& shared_;
  std::size_t host_;
  std::array<std::vector<float>, 3> last_;
  Deadline limit_ = Deadline::in(std::chrono::seconds(30));
};

}  // namespace weft::linear
