// HTTP/1.1 with Content-Length, which is what libcurl uses for S3.

#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace cairn::testing {
namespace {

// Returns false if the connection has ended.
bool ReceiveMore(int fd, std::string* buffer) {
  char bytes[65536];
  const ssize_t length = ::recv(fd, bytes, sizeof(bytes), 0);
  if (length <= 0) return false;
  buffer->append(bytes, static_cast<size_t>(length));
  return true;
}

bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t length = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (length <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(length));
  }
  return true;
}

std::string Lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string Decode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      uint8_t value = 0;
      std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16);
      decoded += static_cast<char>(value);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace

std::string HttpCall::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

std::optional<std::string> HttpCall::Parameter(const std::string& name) const {
  const size_t question = target.find('?');
  if (question == std::string::npos) return std::nullopt;
  std::string_view query = std::string_view(target).substr(question + 1);
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (Decode(item.substr(0, equals)) != name) continue;
    return equals == std::string_view::npos ? "" : Decode(item.substr(equals + 1));
  }
  return std::nullopt;
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    ADD_FAILURE() << "cannot listen";
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

HttpServer::~HttpServer() {
  stopping_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  ::close(listener_);
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    for (const int fd : connections_) ::shutdown(fd, SHUT_RDWR);
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

std::string HttpServer::endpoint() const { return fmt::format("http://127.0.0.1:{}", port_); }

void HttpServer::Accept() {
  while (!stopping_) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ++connection_count_;
    const MutexLock lock(mutex_);
    connections_.insert(fd);
    threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void HttpServer::Serve(int fd) {
  std::string buffer;
  while (const std::optional<HttpCall> call = ReadCall(fd, &buffer)) {
    if (!Send(fd, *call, handler_(*call))) break;
  }
  const MutexLock lock(mutex_);
  connections_.erase(fd);
  ::close(fd);
}

std::optional<HttpCall> HttpServer::ReadCall(int fd, std::string* buffer) {
  size_t end = std::string::npos;
  while ((end = buffer->find("\r\n\r\n")) == std::string::npos) {
    if (!ReceiveMore(fd, buffer)) return std::nullopt;
  }
  HttpCall call;
  std::string_view head = std::string_view(*buffer).substr(0, end);
  const std::string_view first = head.substr(0, head.find("\r\n"));
  call.method = first.substr(0, first.find(' '));
  const size_t space = first.find(' ') + 1;
  call.target = first.substr(space, first.find(' ', space) - space);
  head.remove_prefix(std::min(head.size(), first.size() + 2));
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), line.size() + 2));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const size_t value = line.find_first_not_of(' ', colon + 1);
    call.headers[Lower(std::string(line.substr(0, colon)))] =
        value == std::string_view::npos ? "" : std::string(line.substr(value));
  }
  buffer->erase(0, end + 4);
  const std::string length_text = call.Header("content-length");
  const size_t length = length_text.empty() ? 0 : std::stoull(length_text);
  if (!call.Header("expect").empty() && !SendAll(fd, "HTTP/1.1 100 Continue\r\n\r\n")) {
    return std::nullopt;
  }
  int64_t cut = length > 0 ? cut_request_after_.exchange(-1) : -1;
  while (buffer->size() < length) {
    if (cut >= 0 && buffer->size() >= static_cast<size_t>(cut)) return std::nullopt;
    if (!ReceiveMore(fd, buffer)) return std::nullopt;
  }
  if (cut >= 0) return std::nullopt;
  call.body = buffer->substr(0, length);
  buffer->erase(0, length);
  return call;
}

bool HttpServer::Send(int fd, const HttpCall& call, const HttpReply& reply) {
  const auto end = std::chrono::steady_clock::now() + reply.delay;
  while (!stopping_ && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (reply.cut_at_once) return false;
  std::string text = fmt::format("HTTP/1.1 {} Status\r\n", reply.status);
  for (const std::string& header : reply.headers) text += header + "\r\n";
  const bool has_length = std::ranges::any_of(reply.headers, [](const std::string& header) {
    return header.starts_with("Content-Length");
  });
  if (!has_length) text += fmt::format("Content-Length: {}\r\n", reply.body.size());
  text += "\r\n";
  if (call.method == "HEAD") return SendAll(fd, text) && !reply.cut_after_bytes;
  const std::string body = reply.body.substr(0, reply.cut_after_bytes.value_or(reply.body.size()));
  if (reply.pause_per_byte.count() > 0) {
    if (!SendAll(fd, text)) return false;
    for (size_t i = 0; i < body.size() && !stopping_; ++i) {
      std::this_thread::sleep_for(reply.pause_per_byte);
      if (!SendAll(fd, body.substr(i, 1))) return false;
    }
    return !reply.cut_after_bytes;
  }
  text += body;
  return SendAll(fd, text) && !reply.cut_after_bytes;
}

}  // namespace cairn::testing
