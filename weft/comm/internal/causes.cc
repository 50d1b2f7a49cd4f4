#include "weft/comm/internal/causes.h"

#include <string>

#include "weft/base/json/error_file.h"
#include "weft/comm/internal/job_ranks.h"

namespace weft::comm::internal {
namespace {

// The error of an endpoint's call under the name of the operation that made it.
Error named(const Error& error, std::string_view operation) {
  const auto& [call, rank, peer] = error.context();
  if (operation.empty() || (call != "exchange" && call != "await_any" && call != "flow" &&
                            call != "call" && call != "message"))
    return error;
  return Error(error.code(), error.message(), {std::string(operation), rank, peer});
}

// True for errors after which a group cannot be used; the others are mistakes in a call.
bool is_of_group(Errc code) {
  return code == Errc::kTimeout || code == Errc::kPeerLost || code == Errc::kAborted ||
         code == Errc::kCorrupt || code == Errc::kInternal;
}

}  // namespace

std::exception_ptr Causes::of(std::exception_ptr why, std::string_view operation) {
  try {
    std::rethrow_exception(why);
  } catch (const Error& raw) {
    const Error error = cause_of(named(in_job_ranks(raw, job_ranks_), operation));
    if (is_of_group(error.code())) record_failure(error);
    return std::make_exception_ptr(error);
  } catch (...) {  // an error of another kind stays as it is
    return why;
  }
}

void Causes::note_timeout(const Error& late) {
  const std::lock_guard lock(mutex_);
  if (!timed_out_) timed_out_ = in_job_ranks(late, job_ranks_);
}

Error Causes::cause_of(const Error& error) {
  const bool consequence = error.code() == Errc::kAborted || error.code() == Errc::kPeerLost;
  if (const auto cause = consequence && member_ != nullptr ? member_->cause() : std::nullopt)
    return *cause;
  const std::lock_guard lock(mutex_);
  if (error.code() == Errc::kTimeout && !timed_out_) timed_out_ = error;
  if (error.code() != Errc::kAborted) return error;
  if (timed_out_) {
    const auto& [call, rank, peer] = timed_out_->context();
    return Error(Errc::kTimeout, timed_out_->message(), {error.context().operation, rank, peer});
  }
  const auto lost = member_ != nullptr ? member_->earlier_loss() : std::nullopt;
  return lost.value_or(error);
}

}  // namespace weft::comm::internal
