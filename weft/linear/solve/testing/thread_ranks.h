// Ranks as threads of a test, without torch.
#pragma once

#include <algorithm>
#include <barrier>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "weft/linear/solve/ranks.h"

namespace weft::linear {

class ThreadRanks final : public Ranks {
 public:
  struct Shared {
    explicit Shared(int size)
        : meet(size), parts(static_cast<std::size_t>(size)), texts(parts.size()) {}
    std::barrier<> meet;
    std::vector<std::span<double>> parts;
    std::vector<std::vector<std::string>> texts;  // By sender, then by receiver.
  };

  ThreadRanks(Shared& shared, int rank) : shared_(shared), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_.parts.size()); }
  void sum(std::span<double> values) override {
    reduce(values, [](double a, double b) { return a + b; });
  }
  void max(std::span<double> values) override {
    reduce(values, [](double a, double b) { return std::max(a, b); });
  }
  std::vector<std::string> gather(const std::string& mine) override {
    return exchange(std::vector<std::string>(shared_.parts.size(), mine));
  }
  std::vector<std::string> exchange(std::vector<std::string> to) override {
    shared_.texts[static_cast<std::size_t>(rank_)] = std::move(to);
    shared_.meet.arrive_and_wait();
    std::vector<std::string> mine;
    for (const auto& sent : shared_.texts) mine.push_back(sent[static_cast<std::size_t>(rank_)]);
    shared_.meet.arrive_and_wait();
    return mine;
  }
  std::uint64_t exchanged_bytes() const override { return bytes_; }
  bool in_memory() const override { return true; }

 private:
  template <class Reduce>
  void reduce(std::span<double> values, Reduce reduce) {
    shared_.parts[static_cast<std::size_t>(rank_)] = values;
    shared_.meet.arrive_and_wait();
    std::vector<double> result(shared_.parts[0].begin(), shared_.parts[0].end());
    for (std::size_t r = 1; r < shared_.parts.size(); ++r) {
      for (std::size_t i = 0; i < result.size(); ++i)
        result[i] = reduce(result[i], shared_.parts[r][i]);
    }
    shared_.meet.arrive_and_wait();
    std::copy(result.begin(), result.end(), values.begin());
    bytes_ += values.size_bytes();
  }

  Shared& shared_;
  int rank_;
  std::uint64_t bytes_ = 0;
};

// Calls body(ranks) on `size` threads. It must not throw on one of them only.
inline void on_thread_ranks(int size, const std::function<void(Ranks&)>& body) {
  ThreadRanks::Shared shared(size);
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadRanks ranks(shared, rank);
      try {
        body(ranks);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace weft::linear
