// Calls of etcd's HTTP interface (the gRPC gateway of v3), with the servers of a cluster in turn.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "weft/base/deadline.h"
#include "weft/store/etcd_url.h"

namespace httplib {
class Client;
}

namespace weft::store::internal {

// Keys and values of etcd travel in base64.
std::string to_base64(std::string_view bytes);
// Throws Error(kCorrupt).
std::string from_base64(std::string_view text);

// Numbers of 64 bits are texts in etcd's JSON, and zeros are left out. Throws Error(kCorrupt).
std::uint64_t number_in(const nlohmann::json& object, const char* name);

// For one thread.
class EtcdApi {
 public:
  struct Answer {
    nlohmann::json body;
    int code = 0;           // of gRPC; 0: done
    std::string message;    // of the error
    bool repeated = false;  // an earlier attempt may have been executed
  };
  static constexpr int kNotFound = 5, kFailedPrecondition = 9;

  explicit EtcdApi(EtcdUrl url);
  ~EtcdApi();

  // Tries the servers until one answers, with a result or with an error that another one would give
  // too. Throws Error(kTimeout) at the deadline, with the last reason.
  Answer call(const std::string& path, const nlohmann::json& body, Deadline deadline);
  // Gives each message of a stream to `take` until it returns false or the stream ends. Returns why
  // it ended. The next call asks another server. Throws Error(kCorrupt) for what is not JSON.
  std::string stream(const std::string& path, const nlohmann::json& body,
                     const std::function<bool(const nlohmann::json&)>& take);

 private:
  httplib::Client& client();
  void next_server();

  const EtcdUrl url_;
  std::size_t server_ = 0;
  std::unique_ptr<httplib::Client> client_;
};

}  // namespace weft::store::internal
