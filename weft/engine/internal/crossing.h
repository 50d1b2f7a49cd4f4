// Notices that two ranks of a host wait for each other in steps of different models.
//
// A section is a part of a step that no rank ends before all ranks have entered it. Assume that
// this rank is in a section of model A and waits for a rank that is in a section of model B. If
// this rank has not entered that section of B, neither of them can go on, whatever other ranks do.
// That is an error on all ranks at once, instead of a wait until the deadline.
//
//   Inside here(crossing, Section::kStep, stamp);     one word written for each other model
//   crossing.check(peer, still_waits);                while this rank waits: one word read
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "weft/net/memory/host.h"

namespace weft::engine::internal {

// A model of this rank, in messages and in what ranks tell each other.
struct ModelName {
  // In the order in which models were made parallel on rank 0 of the group; 0: none.
  std::int64_t number = 0;
  std::string parameter;  // its first one
};

// What a rank does in a section.
enum class Section : std::uint64_t { kNone, kStep, kAverage, kDrop };

// The sections of one model. One thread uses the crossings of a host.
class Crossing {
 public:
  // Collective. `host` outlives it.
  Crossing(net::Host& host, ModelName model, std::chrono::nanoseconds timeout);
  ~Crossing();
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;

  // This rank is in a section while it lives. Stamps grow from section to section, alike on all
  // ranks.
  class Inside {
   public:
    Inside(Crossing& crossing, Section section, std::uint32_t stamp);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Crossing& crossing_;
    const std::uint64_t outer_;  // the section around this one
  };

  // This rank waits for `peer` (-1: unknown). Throws Error(kInvalidArgument), and ends the waits of
  // all ranks of the host by it, if `peer` waits for this rank in a section of another model.
  // `still_waits()` tells whether this rank still waits for it.
  void check(int peer, const std::function<bool()>& still_waits) const;

 private:
  std::atomic<std::uint64_t>& word(int rank) const;
  void tell_others() const;
  [[noreturn]] void refuse(int peer, std::uint64_t seen, const Crossing* other) const;

  net::Host& host_;
  const ModelName model_;
  std::byte* const words_;
  std::uint64_t now_ = 0;      // the section that this rank is in, as the others see it; 0: none
  std::uint32_t entered_ = 0;  // stamp of the last one
};

}  // namespace weft::engine::internal
