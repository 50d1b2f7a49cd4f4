// Requests of one client, for tests of shards and replicas.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "weft/ps/internal/request.h"
#include "weft/ps/internal/rows.h"

namespace weft::ps::testing {

inline std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), sizeof(float) * values.size()};
}

inline std::vector<float> floats_of(std::string_view bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Numbers the commands of a client. The payload of the last request stays valid.
class Commands {
 public:
  Commands(std::uint64_t client, std::uint32_t worker) : client_(client), worker_(worker) {}

  internal::Request define(const Options& options,
                           const std::vector<std::pair<std::string, std::vector<float>>>& tensors,
                           const std::vector<TableSpec>& tables = {}) {
    internal::Definition definition{options, {}, {}, tables};
    for (const auto& [name, values] : tensors) {
      definition.parts.push_back({name, 0, static_cast<std::int64_t>(values.size())});
      definition.values += bytes_of(values);
    }
    payload_ = encode(definition);
    return command(internal::Op::kDefine);
  }
  internal::Request join() { return command(internal::Op::kJoin); }
  internal::Request leave() { return command(internal::Op::kLeave); }
  internal::Request push(const std::vector<float>& values, std::vector<std::uint32_t> keys = {},
                         std::uint64_t version = 0) {
    payload_ = bytes_of(values);
    internal::Request request = command(internal::Op::kPush);
    request.keys = std::move(keys);
    request.version = version;
    return request;
  }
  internal::Request pull(std::vector<std::uint32_t> keys = {}) {
    internal::Request request = base(internal::Op::kPull);
    request.keys = std::move(keys);
    return request;
  }
  internal::Request push_rows(std::uint32_t table, const std::vector<std::uint64_t>& keys,
                              const std::vector<float>& values) {
    payload_ = head_of(keys) + bytes_of(values);
    internal::Request request = command(internal::Op::kPushRows);
    request.keys = {table};
    return request;
  }
  internal::Request pull_rows(std::uint32_t table, const std::vector<std::uint64_t>& keys) {
    payload_ = head_of(keys);
    internal::Request request = base(internal::Op::kPullRows);
    request.keys = {table};
    request.payload = payload_;
    return request;
  }
  internal::Request pull_delta(bool whole, std::vector<std::uint32_t> keys = {}) {
    internal::Request request = command(internal::Op::kPullDelta);
    request.keys = std::move(keys);
    request.version = whole ? 1 : 0;
    return request;
  }
  std::uint64_t client() const { return client_; }
  std::uint32_t worker() const { return worker_; }
  std::uint64_t sequence() const { return sequence_; }

 private:
  static std::string head_of(const std::vector<std::uint64_t>& keys) {
    std::string head(internal::rows_head_bytes(keys.size()), '\0');
    internal::write_rows_head(keys, head.data());
    return head;
  }
  internal::Request base(internal::Op op) {
    internal::Request request;
    request.op = op;
    request.id = ++id_;
    request.client = client_;
    request.worker = worker_;
    request.sequence = sequence_;
    return request;
  }
  internal::Request command(internal::Op op) {
    ++sequence_;
    internal::Request request = base(op);
    const bool has_payload =
        op == internal::Op::kDefine || op == internal::Op::kPush || op == internal::Op::kPushRows;
    if (has_payload) request.payload = payload_;
    return request;
  }

  const std::uint64_t client_;
  const std::uint32_t worker_;
  std::uint64_t sequence_ = 0, id_ = 0;
  std::string payload_;
};

}  // namespace weft::ps::testing
