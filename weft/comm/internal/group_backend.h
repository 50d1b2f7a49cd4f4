// GroupBackend is what a Group asks of its backend besides the calls of c10d::Backend. weft's own
// backend knows it all (weft_backend.h). For others, such as Gloo, there are safe answers
// (other_backend()).
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/base/error.h"
#include "weft/comm/group.h"
#include "weft/net/memory/direct.h"
#include "weft/schedule/schedule.h"

namespace weft::comm::internal {

class GroupBackend {
 public:
  virtual ~GroupBackend() = default;

  virtual std::chrono::milliseconds timeout() const = 0;
  // As Group::host() and Group::split().
  virtual net::Host* host() = 0;
  virtual const HostSplit* split() = 0;
  // Over which the ranks met; null: none, or unknown.
  virtual c10::intrusive_ptr<c10d::Store> store() const = 0;
  virtual bool has_ordered_sums() const = 0;
  virtual bool has_device_backend() const = 0;
  virtual Traffic traffic() const = 0;
  virtual void count(const Traffic& moved) const = 0;
  virtual void name_group(const std::string& name) = 0;
  // See Group::abort() and Group::stop().
  virtual void abort_with(const Error& why) = 0;
  virtual void stop() = 0;
  // Synchronous calls without c10d's options and work. False: nothing was done, and the caller
  // takes the call of c10d::Backend.
  virtual bool run_now(schedule::Collective collective, const net::DirectArgs& args) = 0;
  virtual bool send_now(std::span<std::byte> bytes, int peer, int tag) = 0;
  virtual bool recv_now(std::span<std::byte> bytes, int peer, int tag) = 0;
};

// The backend itself, if it is weft's; null for others.
GroupBackend* weft_backend(c10d::Backend& backend);
// Answers for a backend of another library: no memory in common, no fast calls. `backend` must
// outlive it.
std::unique_ptr<GroupBackend> other_backend(c10d::Backend& backend);

}  // namespace weft::comm::internal
