#include "weft/store/etcd/internal/etcd_api.h"

#include <httplib.h>
#include <openssl/evp.h>

#include <algorithm>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/base/text/numbers.h"

namespace weft::store::internal {
namespace {

using namespace std::chrono_literals;

constexpr auto kConnect = 500ms;
// A server that lost its leader may hold a request for seconds, although another one is ready.
constexpr auto kPatience = 600ms;
// etcd reports nothing of an idle watch for minutes. A stream that is idle for so long is opened
// again, so that a server that has gone silent is noticed.
constexpr auto kIdleStream = 1s;
constexpr auto kPause = 20ms;
constexpr std::size_t kMaxAnswer = std::size_t{256} << 20;

// Codes of gRPC after which another server, or the same one later, may answer.
bool is_passing(int code, int http_status) {
  constexpr int kUnknown = 2, kDeadlineExceeded = 4, kInternal = 13, kUnavailable = 14;
  return code == kUnknown || code == kDeadlineExceeded || code == kInternal ||
         code == kUnavailable || (code == 0 && http_status != 200);
}

nlohmann::json json_of(const std::string& text) {
  return parse_json(text, "an answer of etcd", {.depth = 16});
}

httplib::Request post(const std::string& path, const nlohmann::json& body) {
  httplib::Request request;
  request.method = "POST";
  request.path = path;
  request.headers = {{"Content-Type", "application/json"}};
  request.body = body.dump();
  return request;
}

bool is_error_text(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("code");
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::string from_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     static_cast<int>(text.size()));
  const auto padding =
      std::count(text.end() - std::min<std::ptrdiff_t>(2, std::ssize(text)), text.end(), '=');
  if (length < 0 || length < padding)
    throw Error(Errc::kCorrupt, "a value in an answer of etcd is not base64");
  bytes.resize(static_cast<std::size_t>(length - padding));
  return bytes;
}

std::uint64_t number_in(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number()) return found->get<std::uint64_t>();
  const std::string text = found->is_string() ? found->get<std::string>() : "?";
  const auto number = parse_number<std::uint64_t>(text);
  if (!number)
    throw Error(Errc::kCorrupt,
                std::string("an answer of etcd has no number in its field ") + name);
  return *number;
}

EtcdApi::EtcdApi(EtcdUrl url) : url_(std::move(url)) {}
EtcdApi::~EtcdApi() = default;

httplib::Client& EtcdApi::client() {
  if (!client_) {
    const EtcdUrl::Endpoint& endpoint = url_.endpoints[server_];
    client_ = std::make_unique<httplib::Client>(endpoint.host, endpoint.port);
    client_->set_keep_alive(true);
    client_->set_tcp_nodelay(true);
    client_->set_connection_timeout(kConnect);
  }
  return *client_;
}

void EtcdApi::next_server() {
  client_.reset();
  server_ = (server_ + 1) % url_.endpoints.size();
}

EtcdApi::Answer EtcdApi::call(const std::string& path, const nlohmann::json& body,
                              Deadline deadline) {
  httplib::Request request = post(path, body);
  std::string text;
  int status = 0;
  request.response_handler = [&](const httplib::Response& response) {
    status = response.status;
    return true;
  };
  request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    text.append(data, size);
    return text.size() <= kMaxAnswer;
  };
  Answer answer;
  std::string reason = "there was no time to ask";
  while (!deadline.passed()) {
    const auto patience = std::min<std::chrono::nanoseconds>(deadline.left(), kPatience) +
                          std::chrono::milliseconds(1);
    client().set_read_timeout(patience);
    client().set_write_timeout(patience);
    text.clear();
    const httplib::Result result = client().send(request);
    const std::string server = url_.endpoints[server_].text();
    // The library does not read the trailer with which etcd ends an error.
    const bool is_error = !result && is_error_text(text);
    if (result || is_error) {
      answer.body = json_of(text);
      answer.code = static_cast<int>(number_in(answer.body, "code"));
      answer.message = answer.body.value("message", "");
      if (is_error) client_.reset();
      if (!is_passing(answer.code, status)) return answer;
      reason = server + ": " + answer.message;
    } else {
      reason = server + ": " + httplib::to_string(result.error());
    }
    answer.repeated = true;
    next_server();
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kPause, deadline.left()));
  }
  throw Error(Errc::kTimeout, "etcd did not answer before the deadline: " + reason);
}

std::string EtcdApi::stream(const std::string& path, const nlohmann::json& body,
                            const std::function<bool(const nlohmann::json&)>& take) {
  httplib::Request request = post(path, body);
  std::string rest;
  std::exception_ptr failure;  // not thrown through the library
  request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    rest.append(data, size);
    try {
      for (auto end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
        if (!take(json_of(rest.substr(0, end)))) return false;
        rest.erase(0, end + 1);
      }
    } catch (...) {
      failure = std::current_exception();
      return false;
    }
    return rest.size() <= kMaxAnswer;
  };
  client().set_read_timeout(kIdleStream);
  const httplib::Result result = client().send(request);
  const std::string server = url_.endpoints[server_].text();
  next_server();
  if (failure) std::rethrow_exception(failure);
  return result ? server + " ended the stream" : server + ": " + httplib::to_string(result.error());
}

}  // namespace weft::store::internal
